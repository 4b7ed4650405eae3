// Keeps what was said to the server until it is known to be durable, so that a dropped connection loses nothing.
//
// The server names its last durable event when the session resumes; what came later is sent again under the same
// event_ids, which makes a repetition harmless. Ten seconds are kept: older input is given up, and counted.

export const KEEP_MS = 10_000;
export const ITEMS_MAX = 1_024;
export const BYTES_MAX = 4 * 1024 * 1024;

export class Unconfirmed {
  constructor({ keepMs = KEEP_MS, itemsMax = ITEMS_MAX, bytesMax = BYTES_MAX } = {}) {
    this.keepMs = keepMs;
    this.itemsMax = itemsMax;
    this.bytesMax = bytesMax;
    this.items = [];
    this.bytes = 0;
    this.lostMs = 0;
  }

  /** Keeps one event. ``sent`` tells whether it went out; unsent audio that falls out of the window is lost input. */
  add(event, { text, nowMs, audioMs = 0, sent }) {
    this.items.push({ event, text, nowMs, audioMs, sent });
    this.bytes += text.length;
    this.#trim(nowMs);
  }

  /** Drops what is durable: everything up to and including ``lastEventId``. An unknown id drops nothing. */
  confirm(lastEventId) {
    const at = this.items.findIndex(({ event }) => event.event_id === lastEventId);
    for (const item of this.items.splice(0, at + 1)) this.bytes -= item.text.length;
  }

  /** The texts to send (again), oldest first; all count as sent from here on. */
  takeAll() {
    for (const item of this.items) item.sent = true;
    return this.items.map(({ text }) => text);
  }

  /** How much of the user's voice is kept. */
  get audioMs() {
    return this.items.reduce((sum, item) => sum + item.audioMs, 0);
  }

  #trim(nowMs) {
    let drop = 0;
    let bytes = this.bytes;
    for (const item of this.items) {
      const old = nowMs - item.nowMs > this.keepMs;
      if (!old && this.items.length - drop <= this.itemsMax && bytes <= this.bytesMax) break;
      bytes -= item.text.length;
      if (!item.sent) this.lostMs += item.audioMs;
      drop += 1;
    }
    this.items.splice(0, drop);
    this.bytes = bytes;
  }
}
