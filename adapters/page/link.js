// The connection: opens a session, keeps it over drops, gives it up when another window took it.
//
// States: idle -> connecting -> open -> reconnecting -> open ... -> replaced | ended | failed. Everything that touches
// the world (socket, clock, timers, chance) comes in as an argument, so the whole of it runs in tests without a browser.

import { SequenceTracker } from "./sequence.js";
import { Unconfirmed } from "./unconfirmed.js";

const ACK_EVERY_MS = 500;
const ACK_EVENTS = 32;
const QUIET_MS = 10_000;
const HEARTBEAT_ANSWER_MS = 8_000;
const TICK_MS = 1_000;
const HANDSHAKE_MS = 12_000;
const FIRST_ATTEMPTS = 3;
const OUTAGE_MS = 60_000;
// A server that says that it is on its way gets so long.
const STARTING_MS = 300_000;
const SOCKET_BYTES_MAX = 4 * 1024 * 1024;

// Refusals of a resume after which the same token may be presented again. After any other a new session begins.
const RETRYABLE_CODES = new Set([
  "session_resume_conflict",
  "runtime_resume_failed",
  "resource_exhausted",
  "timeout",
  "shutdown",
]);

/** Milliseconds to wait before attempt ``attempt`` (from 0): doubling from 250 ms to 5 s, the upper half by chance. */
export function retryDelayMs(attempt, random = Math.random) {
  const full = Math.min(5_000, 250 * 2 ** Math.min(attempt, 10));
  return full / 2 + (random() * full) / 2;
}

export class Link {
  /**
   * url: the socket's address; protocols: subprotocols to propose; session: () => the session object to ask for; onEvent(event): each server event, once;
   * onState(state, detail): see above, ``detail`` is a code for notices.js; onWait(): another attempt failed, or
   * ``waitingFor`` changed; world: {WebSocket, setTimeout, clearTimeout, now, random, probe}, where probe() gives a promise
   * of why the server takes nobody just now ("loading"), or null when it does not say.
   */
  constructor({ url, protocols = [], session, onEvent, onState, onWait = () => {}, newEventId, world }) {
    Object.assign(this, { url, protocols, session, onEvent, onState, onWait, newEventId, world });
    this.state = "idle";
    this.waitingFor = null;
    this.socket = null;
    this.downSinceMs = null;
    this.timers = new Map();
    this.#forgetSession();
  }

  /** Begins a new conversation, or goes on with the one that was lost. */
  start() {
    if (["connecting", "open", "reconnecting"].includes(this.state)) return;
    this.attempt = 0;
    this.waitingFor = null;
    this.downSinceMs = this.world.now();
    this.#enter(this.ticket ? "reconnecting" : "connecting");
    this.#connect();
  }

  /** Ends the conversation for good. */
  stop() {
    if (this.socket?.readyState === 1) {
      this.#write({ type: "session.close", reason: "client_close", event_id: this.newEventId() });
    }
    this.#finish("idle", "stopped");
  }

  /** Tries at once instead of after the delay (the network came back). */
  retryNow() {
    if (this.state === "reconnecting" && this.socket === null) this.#connect();
  }

  /** Sends a command, now or after the reconnection; it gets its event_id here. ``audioMs`` of it is the user's voice. */
  send(event, audioMs = 0) {
    const numbered = { ...event, event_id: this.newEventId() };
    const text = JSON.stringify(numbered);
    const sent = this.state === "open" && this.#writeText(text);
    this.unconfirmed.add(numbered, { text, nowMs: this.world.now(), audioMs, sent });
  }

  #forgetSession() {
    this.ticket = null;
    this.sequence = new SequenceTracker();
    this.unconfirmed = new Unconfirmed();
    this.sinceAck = 0;
  }

  #connect() {
    this.#cancelTimers();
    const socket = new this.world.WebSocket(this.url, this.protocols);
    this.socket = socket;
    this.greeted = false;
    this.refusal = null;
    this.askedAtMs = null;
    socket.onopen = () => this.#write(this.#firstFrame());
    socket.onmessage = ({ data }) => this.socket === socket && this.#receive(data);
    socket.onclose = ({ code, reason }) => this.socket === socket && this.#closed(code, reason);
    this.#timer("handshake", HANDSHAKE_MS, () => this.#drop(socket, "handshake_timeout"));
  }

  #firstFrame() {
    if (this.ticket === null) {
      return { type: "session.update", event_id: this.newEventId(), session: this.session() };
    }
    return {
      type: "session.resume",
      event_id: this.newEventId(),
      session_id: this.ticket.sessionId,
      resume_token: this.ticket.token,
      last_received_server_event_seq: this.sequence.last,
    };
  }

  #receive(data) {
    this.heardAtMs = this.world.now();
    let event;
    try {
      event = JSON.parse(data);
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error;
      return;
    }
    if (!this.sequence.accept(event.server_event_seq)) return;
    this.sequence.announce(event.response?.metadata?.skipped ?? event.skipped);
    this.#note(event);
    this.onEvent(event);
    this.#acknowledge(event);
  }

  #note(event) {
    switch (event.type) {
      case "session.created":
        this.sequence = new SequenceTracker();
        this.#keepTicket(event, event.session?.id);
        this.#open();
        break;
      case "session.resumed":
        this.#keepTicket(event, event.session_id);
        this.unconfirmed.confirm(event.last_event_id);
        this.#open();
        break;
      case "session.replaced":
        this.#finish("replaced", "replaced");
        break;
      case "session.closed":
      case "session.expired":
        this.#finish("ended", event.reason ?? "ended");
        break;
      case "session.resync_required":
        this.refusal = "resync_required";
        if (this.state === "open") this.#drop(this.socket, "resync_required");
        break;
      case "error":
        if (!this.greeted) this.refusal = event.error?.code ?? event.code ?? "refused";
        break;
      default:
    }
  }

  #keepTicket(event, sessionId) {
    this.ticket = event.resume_token ? { sessionId, token: event.resume_token } : null;
  }

  #open() {
    this.greeted = true;
    this.attempt = 0;
    this.waitingFor = null;
    this.downSinceMs = null;
    this.#cancelTimers();
    this.#enter("open");
    // The first frame on a resumed attachment makes its token the valid one: do not wait for the user to speak.
    this.#write({ type: "session.event_ack", server_event_seq: this.sequence.last, event_id: this.newEventId() });
    for (const text of this.unconfirmed.takeAll()) this.#writeText(text);
    this.#timer("tick", TICK_MS, () => this.#tick());
  }

  #acknowledge(event) {
    if (event.server_event_seq === undefined || this.state !== "open") return;
    this.sinceAck += 1;
    if (this.sinceAck >= ACK_EVENTS) this.#sendAck();
    else if (!this.timers.has("ack")) this.#timer("ack", ACK_EVERY_MS, () => this.#sendAck());
  }

  #sendAck() {
    const number = this.sequence.takeAck();
    this.sinceAck = 0;
    if (number !== null) {
      this.#write({ type: "session.event_ack", server_event_seq: number, event_id: this.newEventId() });
    }
  }

  // A phone that changed networks has a socket that looks open and is dead: ask, and give it up when nothing comes.
  #tick() {
    const nowMs = this.world.now();
    const asked = this.askedAtMs !== null && this.askedAtMs >= this.heardAtMs;
    if (asked && nowMs - this.askedAtMs > HEARTBEAT_ANSWER_MS) {
      this.#drop(this.socket, "silent");
      return;
    }
    if (!asked && nowMs - this.heardAtMs > QUIET_MS) {
      this.#write({ type: "session.heartbeat", event_id: this.newEventId() });
      this.askedAtMs = nowMs;
    }
    this.#timer("tick", TICK_MS, () => this.#tick());
  }

  #drop(socket, reason) {
    if (this.socket !== socket || socket === null) return;
    this.#closed(4000, reason);
    socket.close();
  }

  #closed(code, reason) {
    this.socket = null;
    this.#cancelTimers();
    if (reason === "session_replaced") return this.#finish("replaced", "replaced");
    if (this.refusal !== null && this.ticket === null) return this.#finish("failed", this.refusal);
    if (this.refusal !== null && !RETRYABLE_CODES.has(this.refusal)) return this.#restart();
    if (code === 1008) return this.#finish("failed", "refused");
    return this.#retry();
  }

  #restart() {
    this.#lostForGood();
    this.#enter("connecting", "restarted");
    this.#connect();
  }

  #lostForGood() {
    this.#forgetSession();
    this.greeted = false;
    this.refusal = null;
    this.onEvent({ type: "link.restarted" });
  }

  #retry() {
    const nowMs = this.world.now();
    this.downSinceMs ??= nowMs;
    if (this.greeted && this.ticket === null) this.#lostForGood();
    const lost = this.ticket !== null;
    const starting = this.waitingFor !== null;
    const limitMs = starting ? STARTING_MS : OUTAGE_MS;
    const giveUp = lost || starting ? nowMs - this.downSinceMs > limitMs : this.attempt + 1 >= FIRST_ATTEMPTS;
    if (giveUp) return this.#finish("failed", lost ? "connection_lost" : "no_server", true);
    this.#enter(lost ? "reconnecting" : "connecting");
    this.#timer("retry", retryDelayMs(this.attempt, this.world.random), () => this.#connect());
    this.attempt += 1;
    this.onWait();
    if (!this.greeted) this.#askWhy();
    return undefined;
  }

  // A socket tells nothing about why it was refused; plain HTTP does.
  async #askWhy() {
    const reason = await this.world.probe();
    if (reason === this.waitingFor || !["connecting", "reconnecting"].includes(this.state)) return;
    this.waitingFor = reason;
    this.onWait();
  }

  /** How long there has been no connection. */
  get downMs() {
    return this.downSinceMs === null ? 0 : this.world.now() - this.downSinceMs;
  }

  #finish(state, detail, keepTicket = false) {
    const socket = this.socket;
    this.socket = null;
    this.waitingFor = null;
    this.#cancelTimers();
    if (!keepTicket) this.#forgetSession();
    socket?.close(1000);
    this.#enter(state, detail);
  }

  #enter(state, detail = null) {
    const changed = state !== this.state || detail !== null;
    this.state = state;
    if (changed) this.onState(state, detail);
  }

  #write(event) {
    return this.#writeText(JSON.stringify(event));
  }

  // A socket that does not drain is as good as lost; what it holds is sent again after the resume.
  #writeText(text) {
    const socket = this.socket;
    if (socket === null || socket.readyState !== 1) return false;
    if (socket.bufferedAmount > SOCKET_BYTES_MAX) {
      this.#drop(socket, "stuck");
      return false;
    }
    socket.send(text);
    return true;
  }

  #timer(name, delayMs, action) {
    this.world.clearTimeout(this.timers.get(name));
    const handle = this.world.setTimeout(() => {
      this.timers.delete(name);
      action();
    }, delayMs);
    this.timers.set(name, handle);
  }

  #cancelTimers() {
    for (const handle of this.timers.values()) this.world.clearTimeout(handle);
    this.timers.clear();
  }
}
