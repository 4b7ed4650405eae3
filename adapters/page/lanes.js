// The strip of lanes: your voice, its voice, and where it was cut, scrolling in time.

const BUCKET_MS = 75;
const KEEP_MS = 60_000;
const PIXELS_PER_SECOND = 46;
const NOW_SHARE = 0.86;
const SPANS_MAX = 128;

/** What happened when, on the page's own clock in ms. Bounded to a minute. */
export class LaneHistory {
  constructor() {
    this.clear();
  }

  clear() {
    this.levels = { you: new Map(), it: new Map() };
    this.speech = [];
    this.cuts = [];
  }

  /** A level (RMS, 0..1) of lane ``you`` or ``it``. */
  level(lane, nowMs, rms) {
    const buckets = this.levels[lane];
    const key = Math.floor(nowMs / BUCKET_MS);
    buckets.set(key, Math.max(rms, buckets.get(key) ?? 0));
    const oldest = key - KEEP_MS / BUCKET_MS;
    for (const old of buckets.keys()) {
      if (old >= oldest) break;
      buckets.delete(old);
    }
  }

  speechStarted(atMs) {
    this.speechStopped(atMs);
    this.#addSpeech({ fromMs: atMs, toMs: null, overheard: false });
  }

  speechStopped(atMs) {
    const last = this.speech.at(-1);
    if (last !== undefined) last.toMs ??= atMs;
  }

  /** Speech over an answer that was judged to be no turn ("mm-hmm"). */
  overheard(fromMs, toMs) {
    this.#addSpeech({ fromMs, toMs, overheard: true });
  }

  #addSpeech(span) {
    this.speech.push(span);
    if (this.speech.length > SPANS_MAX) this.speech.shift();
  }

  /** An answer was cut with ``unheardMs`` of its audio already here. */
  cut(nowMs, unheardMs) {
    this.cuts.push({ atMs: nowMs, unheardMs });
    if (this.cuts.length > SPANS_MAX) this.cuts.shift();
  }

  /** A new answer sounds: what the last one left unsaid ends here at the latest. */
  answerStarted(nowMs) {
    const last = this.cuts.at(-1);
    if (last !== undefined) last.unheardMs = Math.min(last.unheardMs, Math.max(0, nowMs - last.atMs));
  }

  speechAt(atMs) {
    return this.speech.findLast((span) => span.fromMs <= atMs && (span.toMs === null || atMs <= span.toMs));
  }
}

/** Draws a LaneHistory on a canvas. Colours come from the style sheet. */
export class LaneView {
  constructor(canvas, history, now) {
    Object.assign(this, { canvas, history, now });
    this.pen = canvas.getContext("2d");
    this.readColours();
  }

  /** Call again when the colour scheme changes. */
  readColours() {
    const style = getComputedStyle(this.canvas);
    const colour = (name) => style.getPropertyValue(name).trim();
    this.colours = {
      you: colour("--you"), it: colour("--it"), cut: colour("--cut"), rest: colour("--rest"), line: colour("--line"),
    };
  }

  draw() {
    const ratio = globalThis.devicePixelRatio ?? 1;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (width === 0) return;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
    }
    this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.pen.clearRect(0, 0, width, height);
    const nowMs = this.now();
    const scene = { width, height, nowMs, x: (ms) => width * NOW_SHARE + ((ms - nowMs) * PIXELS_PER_SECOND) / 1000 };
    this.#ground(scene);
    this.#bars(scene, "you", height * 0.25);
    this.#bars(scene, "it", height * 0.75);
    for (const cut of this.history.cuts) this.#cut(scene, cut);
  }

  #ground({ width, height, x, nowMs }) {
    const { pen } = this;
    pen.strokeStyle = this.colours.line;
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(0, Math.round(height / 2) + 0.5);
    pen.lineTo(width, Math.round(height / 2) + 0.5);
    const here = Math.round(x(nowMs)) + 0.5;
    pen.moveTo(here, 0);
    pen.lineTo(here, height);
    pen.stroke();
  }

  #bars(scene, lane, middle) {
    const { pen } = this;
    const reach = scene.height * 0.21;
    const bar = Math.max(1.5, (PIXELS_PER_SECOND * BUCKET_MS) / 1000 - 1.25);
    for (const [key, rms] of this.history.levels[lane]) {
      const atMs = key * BUCKET_MS;
      const left = scene.x(atMs);
      if (left < -4 || atMs > scene.nowMs) continue;
      const tall = Math.max(1, reach * Math.min(1, Math.sqrt(rms * 4.5)));
      this.#ink(lane, atMs + BUCKET_MS / 2);
      pen.fillRect(left, middle - tall, bar, tall * 2);
    }
    pen.globalAlpha = 1;
  }

  #ink(lane, atMs) {
    const span = lane === "you" ? this.history.speechAt(atMs) : null;
    this.pen.globalAlpha = span?.overheard ? 0.45 : 1;
    if (lane === "it") this.pen.fillStyle = this.colours.it;
    else this.pen.fillStyle = span === undefined ? this.colours.rest : this.colours.you;
  }

  #cut({ height, x }, { atMs, unheardMs }) {
    const { pen } = this;
    const left = x(atMs);
    const wide = (unheardMs * PIXELS_PER_SECOND) / 1000;
    if (left + wide < -4) return;
    this.#hatch(left, height * 0.58, wide, height * 0.34);
    pen.strokeStyle = this.colours.cut;
    pen.lineWidth = 2;
    pen.beginPath();
    pen.moveTo(left, height * 0.04);
    pen.lineTo(left, height * 0.96);
    pen.stroke();
  }

  // What would have been said: striped, so that it does not rest on colour alone.
  #hatch(left, top, wide, tall) {
    const { pen } = this;
    pen.save();
    pen.beginPath();
    pen.rect(left, top, wide, tall);
    pen.clip();
    pen.globalAlpha = 0.55;
    pen.strokeStyle = this.colours.cut;
    pen.lineWidth = 1;
    pen.beginPath();
    for (let at = left - tall; at < left + wide; at += 6) {
      pen.moveTo(at, top + tall);
      pen.lineTo(at + tall, top);
    }
    pen.stroke();
    pen.restore();
  }
}
