// Plays answers through a jitter buffer and counts the samples that were really rendered, for each response.
//
// "Played" is the only honest figure for what a listener heard: what was received and still waits here was not. The file
// imports nothing: worklets of older browsers cannot.

// Far more than a server sends ahead; beyond it something is wrong and the newest audio is refused.
export const QUEUE_SECONDS_MAX = 120;
export const CHUNKS_MAX = 8_192;
const FADE_SECONDS = 0.005;

/** The jitter buffer. Responses play one after the other, each after its own prebuffer. All counts are in samples. */
export class PlaybackQueue {
  constructor(rate, prebufferMs) {
    this.rate = rate;
    this.samplesMax = rate * QUEUE_SECONDS_MAX;
    this.entries = [];
    this.queued = 0;
    this.chunks = 0;
    this.underruns = 0;
    this.overflows = 0;
    this.fade = new Float32Array(0);
    this.setPrebuffer(prebufferMs);
  }

  setPrebuffer(prebufferMs) {
    this.prebuffer = Math.round((prebufferMs * this.rate) / 1000);
  }

  /** Adds audio of response ``id``. False: the queue is full and the audio was refused. */
  push(id, samples) {
    if (samples.length === 0) return true;
    if (this.queued + samples.length > this.samplesMax || this.chunks >= CHUNKS_MAX) {
      this.overflows += 1;
      return false;
    }
    const entry = this.#entry(id);
    entry.chunks.push(samples);
    entry.queued += samples.length;
    this.queued += samples.length;
    this.chunks += 1;
    return true;
  }

  /** No more audio of this response will come: what is left plays without waiting for a prebuffer. */
  end(id) {
    this.#entry(id).ended = true;
  }

  /** Drops response ``id`` (null: everything) at once. Returns what became of each: {id, played, unheard}. */
  flush(id = null) {
    const gone = this.entries.filter((entry) => id === null || entry.id === id);
    if (gone.includes(this.entries[0])) this.fade = this.#fadeOut();
    this.entries = this.entries.filter((entry) => !gone.includes(entry));
    for (const entry of gone) {
      this.queued -= entry.queued;
      this.chunks -= entry.chunks.length;
    }
    return gone.map((entry) => ({ id: entry.id, played: entry.played, unheard: entry.queued }));
  }

  /** Fills ``out`` completely. Returns what happened: {type: started | underrun | finished, id, played}. */
  render(out) {
    const events = [];
    out.fill(0);
    let at = 0;
    while (at < out.length && this.entries.length > 0) {
      const entry = this.entries[0];
      if (!entry.playing && !this.#begin(entry, events)) break;
      at += this.#copy(entry, out, at);
      if (entry.queued > 0) continue;
      if (entry.ended) {
        this.entries.shift();
        events.push({ type: "finished", id: entry.id, played: entry.played });
      } else if (at < out.length) {
        entry.playing = false;
        this.underruns += 1;
        events.push({ type: "underrun", id: entry.id, played: entry.played });
        break;
      } else {
        break;
      }
    }
    this.#mixFade(out);
    return events;
  }

  /** The response that is being heard, or null. */
  get current() {
    const entry = this.entries[0];
    return entry?.playing ? { id: entry.id, played: entry.played, queued: entry.queued } : null;
  }

  #entry(id) {
    let entry = this.entries.find((known) => known.id === id);
    if (entry === undefined) {
      entry = { id, chunks: [], offset: 0, queued: 0, played: 0, ended: false, playing: false };
      this.entries.push(entry);
    }
    return entry;
  }

  #begin(entry, events) {
    if (entry.queued < this.prebuffer && !entry.ended) return false;
    entry.playing = true;
    if (entry.played === 0 && entry.queued > 0) events.push({ type: "started", id: entry.id, played: 0 });
    return true;
  }

  #copy(entry, out, at) {
    let copied = 0;
    while (entry.chunks.length > 0 && at + copied < out.length) {
      const chunk = entry.chunks[0];
      const count = Math.min(chunk.length - entry.offset, out.length - at - copied);
      out.set(chunk.subarray(entry.offset, entry.offset + count), at + copied);
      entry.offset += count;
      copied += count;
      if (entry.offset === chunk.length) {
        entry.chunks.shift();
        entry.offset = 0;
        this.chunks -= 1;
      }
    }
    entry.queued -= copied;
    entry.played += copied;
    this.queued -= copied;
    return copied;
  }

  // A few milliseconds of slope instead of a click. They are not counted as played.
  #fadeOut() {
    const entry = this.entries[0];
    if (!entry?.playing || entry.chunks.length === 0) return new Float32Array(0);
    const count = Math.round(this.rate * FADE_SECONDS);
    const tail = entry.chunks[0].slice(entry.offset, entry.offset + count);
    for (let i = 0; i < tail.length; i += 1) tail[i] *= 1 - (i + 1) / tail.length;
    return tail;
  }

  #mixFade(out) {
    const count = Math.min(this.fade.length, out.length);
    for (let i = 0; i < count; i += 1) out[i] += this.fade[i];
    this.fade = this.fade.subarray(count);
  }
}

const REPORT_SECONDS = 0.05;
const Processor = globalThis.AudioWorkletProcessor ?? Object;

class PlaybackProcessor extends Processor {
  constructor(options) {
    super();
    const rate = globalThis.sampleRate;
    this.queue = new PlaybackQueue(rate, options.processorOptions.prebufferMs);
    this.reportEvery = Math.round(rate * REPORT_SECONDS);
    this.sinceReport = 0;
    this.energy = 0;
    this.running = true;
    this.port.onmessage = ({ data }) => this.receive(data);
  }

  receive(message) {
    if (message.type === "push") {
      if (!this.queue.push(message.id, message.samples)) this.port.postMessage({ type: "overflow", id: message.id });
    } else if (message.type === "end") this.queue.end(message.id);
    else if (message.type === "flush") {
      this.port.postMessage({ type: "flushed", ticket: message.ticket, cut: this.queue.flush(message.id) });
    } else if (message.type === "prebuffer") this.queue.setPrebuffer(message.prebufferMs);
    else if (message.type === "stop") this.running = false;
  }

  process(_inputs, outputs) {
    const [left, ...others] = outputs[0];
    for (const event of this.queue.render(left)) this.port.postMessage(event);
    for (const channel of others) channel.set(left);
    this.report(left);
    return this.running;
  }

  report(rendered) {
    for (let i = 0; i < rendered.length; i += 1) this.energy += rendered[i] * rendered[i];
    this.sinceReport += rendered.length;
    if (this.sinceReport < this.reportEvery) return;
    const current = this.queue.current;
    const level = Math.sqrt(this.energy / this.sinceReport);
    if (current !== null) this.port.postMessage({ type: "progress", level, underruns: this.queue.underruns, ...current });
    this.sinceReport = 0;
    this.energy = 0;
  }
}

if (typeof globalThis.registerProcessor === "function") {
  globalThis.registerProcessor("duologue-playback", PlaybackProcessor);
}
