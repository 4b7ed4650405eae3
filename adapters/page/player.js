// Plays answers and knows, at any moment, how much of each was really heard.

import { Trouble } from "./notices.js";
import { AUDIO_RATE, PREBUFFER_MS_DEFAULT, base64ToFloat, samplesToMs } from "./protocol.js";

const FLUSH_ANSWER_MS = 80;
// Firefox asks its audio process for outputLatency while it holds a lock that its audio thread may be waiting for, and that
// process may be waiting for the audio thread: the page stood still for good, in two of five runs of the test (Firefox 153 ESR,
// PulseAudio). So it is not asked. The figure is the most that Firefox itself tells, by system, to pages that may not measure.
const IS_FIREFOX = globalThis.CSS?.supports("-moz-appearance", "none") ?? false;
const FIREFOX_OUTPUT_LATENCY_S = 0.04;
const DEAD_MAX = 64;

export class Player {
  /**
   * onStarted(id); onProgress(id, playedMs, level); onFinished(id, playedMs): to its last sample;
   * onTrouble(code): audio was refused; onAudible(): sound comes out from here on.
   */
  constructor({ onStarted, onProgress, onFinished, onTrouble, onAudible }) {
    Object.assign(this, { onStarted, onProgress, onFinished, onTrouble, onAudible });
    this.prebufferMs = PREBUFFER_MS_DEFAULT;
    this.opening = null;
    this.context = null;
    this.node = null;
    this.waiting = [];
    this.dead = [];
    this.flushes = new Map();
    this.tickets = 0;
    this.underruns = 0;
    this.last = null;
  }

  /** Must be called from a user's gesture: browsers keep pages silent until then. Throws Trouble. */
  open() {
    this.opening ??= this.#open().catch((error) => {
      this.opening = null;
      throw new Trouble("no_server", error);
    });
    this.context?.resume();
    return this.opening;
  }

  async #open() {
    const context = new AudioContext({ sampleRate: AUDIO_RATE, latencyHint: "interactive" });
    await context.audioWorklet.addModule(new URL("playback-worklet.js", import.meta.url));
    context.onstatechange = () => this.isAudible && this.onAudible();
    // Not awaited: where there is no sound device a browser may never answer. Text goes on without sound.
    context.resume();
    this.context = context;
    const node = new AudioWorkletNode(context, "duologue-playback", {
      numberOfInputs: 0,
      outputChannelCount: [1],
      processorOptions: { prebufferMs: this.prebufferMs },
    });
    node.port.onmessage = ({ data }) => this.#hear(data);
    node.connect(context.destination);
    this.node = node;
    for (const message of this.waiting) node.port.postMessage(message);
    this.waiting = [];
  }

  /** Whether sound really comes out; a browser without a device, or without a user's gesture, keeps it off. */
  get isAudible() {
    return this.context?.state === "running";
  }

  get isPlaying() {
    return this.last !== null;
  }

  /** How long to collect audio before an answer starts to sound; the server recommends it. */
  setPrebuffer(prebufferMs) {
    this.prebufferMs = prebufferMs;
    this.#post({ type: "prebuffer", prebufferMs });
  }

  push(id, base64) {
    if (this.dead.includes(id)) return;
    const samples = base64ToFloat(base64);
    this.#post({ type: "push", id, samples });
  }

  end(id) {
    if (!this.dead.includes(id)) this.#post({ type: "end", id });
  }

  /**
   * Silence, now, for one response (null: for all). Resolves to what became of each: [{id, playedMs, unheardMs}]. Their
   * audio that still comes in is dropped.
   */
  async flush(id = null) {
    if (id !== null) this.forget(id);
    this.waiting = this.waiting.filter((message) => id !== null && message.id !== id);
    if (this.node === null) return [];
    const last = this.last !== null && (id === null || this.last.id === id) ? this.last : null;
    if (last !== null) this.last = null;
    const ticket = (this.tickets += 1);
    const answer = new Promise((resolve) => {
      this.flushes.set(ticket, resolve);
      setTimeout(() => resolve(null), FLUSH_ANSWER_MS);
    });
    this.#post({ type: "flush", ticket, id });
    const cut = await answer;
    this.flushes.delete(ticket);
    // The audio thread is late: the last report is what is known.
    if (cut === null) return last === null ? [] : [{ ...last, unheardMs: 0 }];
    for (const entry of cut) this.forget(entry.id);
    return cut.map(({ id: cutId, played, unheard }) => {
      return { id: cutId, playedMs: samplesToMs(played), unheardMs: samplesToMs(unheard) };
    });
  }

  /** Audio of this response is not wanted any more. */
  forget(id) {
    if (!this.dead.includes(id)) this.dead.push(id);
    if (this.dead.length > DEAD_MAX) this.dead.shift();
  }

  #post(message) {
    if (this.node !== null) {
      this.node.port.postMessage(message, message.samples ? [message.samples.buffer] : []);
    } else if (this.waiting.length < 1_024) {
      this.waiting.push(message);
    }
  }

  // What was rendered is not yet out of the loudspeaker.
  #latencyMs() {
    if (this.context === null) return 0;
    const outputS = IS_FIREFOX ? FIREFOX_OUTPUT_LATENCY_S : (this.context.outputLatency ?? 0);
    return ((this.context.baseLatency ?? 0) + outputS) * 1_000;
  }

  #hear(message) {
    if (message.type === "flushed") this.flushes.get(message.ticket)?.(message.cut);
    else if (message.type === "overflow") this.onTrouble("playback_overflow");
    else if (message.type === "underrun") this.underruns += 1;
    else if (this.dead.includes(message.id)) return;
    else if (message.type === "started") {
      this.last = { id: message.id, playedMs: 0 };
      this.onStarted(message.id, this.#latencyMs());
    } else if (message.type === "progress") this.#progress(message);
    else if (message.type === "finished") {
      this.last = null;
      this.onFinished(message.id, samplesToMs(message.played));
    }
  }

  #progress(message) {
    const playedMs = Math.max(0, samplesToMs(message.played) - this.#latencyMs());
    this.last = { id: message.id, playedMs };
    this.onProgress(message.id, playedMs, message.level);
  }
}
