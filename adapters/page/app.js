// The page: joins microphone, connection, conversation, player and view.

import { Conversation } from "./conversation.js";
import { AckPacer } from "./heard.js";
import { LaneHistory, LaneView } from "./lanes.js";
import { LatencyMeter, SteadyClock } from "./latency.js";
import { Link } from "./link.js";
import { Microphone } from "./microphone.js";
import { noticeFor, Trouble } from "./notices.js";
import { Player } from "./player.js";
import { CHUNK_MS, idMaker, pcm16ToBase64, sessionRequest, socketProtocols, socketUrl } from "./protocol.js";
import { View } from "./view.js";

const LEVEL_MS = 20;
const SOUND_MS = 4_000;
// So much of what is said in a gap reaches the server after it (unconfirmed.js).
const KEPT_MS = 10_000;
const WAITING = {
  loading: "The server is loading its model…",
  draining: "The server is restarting…",
  runtime_restarting: "The model is starting again…",
};
// What to call a conversation that is not going on.
const OVER = { failed: "No connection", ended: "Ended", replaced: "Elsewhere" };
const now = () => performance.now();

class App {
  constructor() {
    this.view = new View();
    this.talk = new Conversation();
    this.acks = new AckPacer();
    this.latency = new LatencyMeter();
    this.lanes = new LaneHistory();
    this.laneView = new LaneView(this.view.canvas, this.lanes, now);
    this.newItemId = idMaker("item");
    this.userSpeaks = false;
    this.withMicrophone = false;
    this.wakeLock = null;
    this.captureClock = new SteadyClock();
    this.capturedMs = 0;
    // What the server's input clock will show when all that was captured has arrived, and when that was.
    this.inputMs = 0;
    this.inputAtMs = 0;
    this.playClock = new SteadyClock();
    this.playClockOf = null;
    this.microphone = new Microphone({ onChunk: (chunk) => this.heardUser(chunk), onLost: () => this.notify("microphone_lost") });
    this.player = new Player({
      onStarted: (id, latencyMs) => this.answerStarted(id, latencyMs),
      onProgress: (id, playedMs, level) => this.answerPlays(id, playedMs, level),
      onFinished: (id, playedMs) => this.answerFinished(id, playedMs),
      onTrouble: (code) => this.notify(code),
      // A busy machine may need longer for its sound than we wait before we say that there is none.
      onAudible: () => this.view.takeBack("no_sound"),
    });
    this.link = new Link({
      url: socketUrl(location),
      protocols: socketProtocols(location),
      session: sessionRequest,
      onEvent: (event) => this.serverSaid(event),
      onState: (state, detail) => this.linkChanged(state, detail),
      onWait: () => this.refresh(),
      newEventId: idMaker("event"),
      world: browserWorld(),
    });
    this.bind();
    this.refresh();
    this.animate();
  }

  get isRunning() {
    return ["connecting", "open", "reconnecting"].includes(this.link.state);
  }

  bind() {
    const { view } = this;
    view.startButton.addEventListener("click", () => (this.isRunning ? this.link.stop() : this.start()));
    view.muteButton.addEventListener("click", () => this.microphoneButton());
    view.interruptButton.addEventListener("click", () => this.interrupt());
    view.form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const text = view.message.value;
      view.message.value = "";
      if (!(await this.write(text)) && view.message.value === "") view.message.value = text;
    });
    view.welcome.addEventListener("click", ({ target }) => {
      if (target.closest(".example")) this.write(target.textContent);
    });
    document.addEventListener("keydown", (event) => this.key(event));
    // A key that is added to the address comes without a reload.
    window.addEventListener("hashchange", () => (this.link.protocols = socketProtocols(location)));
    window.addEventListener("online", () => this.link.retryNow());
    // A page that is left frees its place on the server at once.
    window.addEventListener("pagehide", () => this.link.stop());
    document.addEventListener("visibilitychange", () => this.keepAwake());
    const scheme = window.matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", () => this.laneView.readColours());
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    // The space bar presses whatever button has the focus, and scrolls what can be scrolled; elsewhere it interrupts, too.
    const space = event.key === " " && event.target === document.body;
    if (space) event.preventDefault();
    if ((space || event.key === "Escape") && this.canInterrupt) this.interrupt();
    const typing = event.target.closest?.("input, textarea");
    if (event.key.toLowerCase() === "m" && !typing && this.microphone.isOpen) this.mute(!this.microphone.muted);
  }

  /** Mutes; in a conversation that began by typing it switches the microphone on. */
  microphoneButton() {
    return this.microphone.isOpen ? this.mute(!this.microphone.muted) : this.start();
  }

  /** Microphone first: nobody waits for a server only to learn that the microphone is blocked. */
  async start() {
    this.withMicrophone = true;
    this.view.hideNotice();
    this.view.startButton.disabled = true;
    this.view.showActivity("wait", "Allow the microphone…");
    try {
      this.captureClock = new SteadyClock();
      await Promise.all([this.player.open(), this.microphone.open()]);
      this.link.start();
      setTimeout(() => this.checkSound(), SOUND_MS);
    } catch (error) {
      if (!(error instanceof Trouble)) throw error;
      this.notify(error.code);
    } finally {
      this.view.startButton.disabled = false;
      this.refresh();
    }
  }

  checkSound() {
    if (this.isRunning && !this.player.isAudible) this.notify("no_sound");
  }

  mute(muted) {
    this.microphone.setMuted(muted);
    this.view.say(muted ? "Microphone muted" : "Microphone on");
    this.refresh();
  }

  /** A typed message; it cuts an answer like a spoken one. False: it was not taken. */
  async write(raw) {
    const text = raw.trim();
    if (text === "" || !(await this.openPlayer())) return false;
    if (!this.isRunning) {
      this.view.hideNotice();
      this.link.start();
    }
    if (this.canInterrupt) await this.interrupt();
    const id = this.newItemId();
    this.talk.typed(id, text);
    this.latency.asked(now());
    const content = [{ type: "input_text", text }];
    this.link.send({ type: "conversation.item.create", item: { id, type: "message", role: "user", content } });
    this.link.send({ type: "response.create" });
    this.refresh();
    return true;
  }

  async openPlayer() {
    try {
      await this.player.open();
      return true;
    } catch (error) {
      if (!(error instanceof Trouble)) throw error;
      this.notify(error.code);
      return false;
    }
  }

  get canInterrupt() {
    return this.link.state === "open" && (this.player.isPlaying || this.talk.activeResponse !== null);
  }

  /** Silence at once; then the server learns what was heard, then that it was cut: in this order it cuts exactly there. */
  async interrupt() {
    const active = this.talk.activeResponse;
    if (active !== null) {
      this.player.forget(active);
      this.talk.cutHere(active);
    }
    await this.cut(null);
    this.link.send({ type: "barge_in" });
    this.view.say("Interrupted");
  }

  async cut(id) {
    const atMs = now();
    for (const { id: cutId, playedMs, unheardMs } of await this.player.flush(id)) {
      this.talk.heard(cutId, playedMs);
      this.talk.cutHere(cutId);
      this.acknowledge(cutId, this.acks.final(cutId, playedMs, now()));
      this.lanes.cut(atMs, unheardMs);
    }
    this.refresh();
  }

  acknowledge(responseId, playedMs) {
    if (playedMs !== null) this.link.send({ type: "playback.ack", response_id: responseId, played_ms: playedMs });
  }

  heardUser({ pcm, levels }) {
    this.capturedMs += CHUNK_MS;
    const endMs = this.captureClock.at(this.capturedMs, now());
    levels.forEach((level, index) => {
      const atMs = endMs - (levels.length - 1 - index) * LEVEL_MS;
      this.lanes.level("you", atMs, level);
      this.latency.level(atMs, level);
    });
    if (!this.isRunning) return;
    this.inputMs += CHUNK_MS;
    this.inputAtMs = endMs;
    this.link.send({ type: "input_audio_buffer.append", audio: pcm16ToBase64(pcm) }, CHUNK_MS);
  }

  /** The time on the page's clock at which position ``inputMs`` of the input was said. */
  saidAt(inputMs) {
    const atMs = this.inputAtMs - (this.inputMs - inputMs);
    return Number.isFinite(atMs) && this.inputAtMs > 0 ? Math.min(now(), atMs) : now();
  }

  answerStarted(_id, outputLatencyMs) {
    const waitedMs = this.latency.answered(now() + outputLatencyMs);
    if (waitedMs !== null) this.view.showLatency(waitedMs);
    this.lanes.answerStarted(now());
    this.refresh();
  }

  answerPlays(id, playedMs, level) {
    const stretch = `${id} ${this.player.underruns}`;
    if (this.playClockOf !== stretch) this.playClock = new SteadyClock();
    this.playClockOf = stretch;
    this.lanes.level("it", this.playClock.at(playedMs, now()), level);
    this.talk.heard(id, playedMs);
    this.acknowledge(id, this.acks.progress(id, playedMs, now()));
    this.refresh();
  }

  answerFinished(id, playedMs) {
    this.talk.heard(id, playedMs);
    this.acknowledge(id, this.acks.final(id, playedMs, now()));
    const turn = this.talk.byResponse(id);
    if (turn !== undefined) this.view.say(`Assistant: ${turn.text}`);
    this.refresh();
  }

  serverSaid(event) {
    const prebufferMs = event.session?.recommended_prebuffer_ms;
    if (Number.isFinite(prebufferMs)) this.player.setPrebuffer(Math.max(0, prebufferMs));
    if (event.type === "link.restarted") this.talk.activeResponse = null;
    if (event.type === "session.created" || event.type === "session.resumed") {
      this.inputMs = (event.input_ms ?? 0) + this.link.unconfirmed.audioMs;
    }
    for (const action of this.talk.apply(event)) this.act(action);
    this.refresh();
  }

  act(action) {
    switch (action.type) {
      case "play":
        this.player.push(action.id, action.audio);
        break;
      case "end":
        this.player.end(action.id);
        break;
      case "cut":
        this.cut(action.id);
        break;
      case "notice":
        if (this.link.state === "open") this.notify(action.code, action.message);
        break;
      case "speech":
        this.speech(action.phase, this.saidAt(action.inputMs));
        break;
      case "overheard":
        this.lanes.overheard(now() - action.speechMs - CHUNK_MS, now());
        break;
      default:
    }
  }

  speech(phase, atMs) {
    this.userSpeaks = phase === "started";
    if (phase === "started") {
      this.latency.speechStarted(atMs);
      this.lanes.speechStarted(atMs);
    } else {
      this.latency.speechStopped(now());
      this.lanes.speechStopped(atMs);
    }
  }

  linkChanged(state, detail) {
    this.view.showState(state);
    if (state === "replaced" || state === "ended" || state === "failed" || state === "idle") this.settle();
    if (detail !== null) this.notify(detail, "", state !== "open" && state !== "connecting");
    if (detail === "restarted") this.view.divide("A new conversation");
    if (state === "failed" && detail === "no_server") this.explainFailure();
    this.keepAwake();
    this.refresh();
  }

  /** The conversation is over, or nobody listens: release the microphone, and let no half answer go on. */
  settle() {
    this.microphone.close();
    this.userSpeaks = false;
    this.talk.activeResponse = null;
    this.cut(null);
    this.acks.forget();
  }

  /** A server that answers over HTTP, and gave no socket. */
  async explainFailure() {
    const reason = await notReady();
    if (reason !== null) this.notify(reason);
  }

  notify(code, message = "", final = false) {
    const notice = noticeFor(code, message, final);
    if (notice !== null) this.view.showNotice(notice, (action) => this.again(action));
    this.refresh();
  }

  /** "Try again" goes back to what there was: who only typed is not asked for a microphone. */
  again(action) {
    return action === "retry" && !this.withMicrophone ? this.link.start() : this.start();
  }

  /** A phone that dims its screen in mid-conversation would take the microphone away. */
  async keepAwake() {
    const wanted = this.isRunning && this.microphone.isOpen && document.visibilityState === "visible";
    if (!wanted) {
      this.wakeLock?.release();
      this.wakeLock = null;
    } else if (this.wakeLock === null || this.wakeLock.released) {
      try {
        this.wakeLock = (await navigator.wakeLock?.request("screen")) ?? null;
      } catch (error) {
        // Refused (low battery, hidden meanwhile): the conversation goes on without.
        if (!(error instanceof DOMException)) throw error;
      }
    }
  }

  refresh() {
    this.view.showTurns(this.talk.takeChanged());
    const muted = this.microphone.muted;
    const offerMicrophone = this.isRunning && !this.microphone.isOpen;
    this.view.showControls({ offerMicrophone, isOpen: this.microphone.isOpen, muted, canInterrupt: this.canInterrupt });
    this.view.showActivity(...this.activity());
  }

  activity() {
    const { state } = this.link;
    if (state === "connecting") return ["wait", WAITING[this.link.waitingFor] ?? "Connecting…"];
    if (state === "reconnecting") {
      const plain = this.link.downMs < KEPT_MS ? "Reconnecting, keep talking" : "Reconnecting…";
      return ["wait", WAITING[this.link.waitingFor] ?? plain];
    }
    if (state !== "open") return ["idle", OVER[state] ?? "Ready"];
    if (this.userSpeaks) return ["hear", "Hearing you"];
    if (this.player.isPlaying) return ["speak", "Answering"];
    if (this.talk.activeResponse !== null) return ["wait", "Thinking…"];
    if (!this.microphone.isOpen) return ["idle", "Connected, microphone off"];
    return this.microphone.muted ? ["muted", "Muted"] : ["listen", "Listening"];
  }

  animate() {
    const calm = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    const draw = () => {
      this.laneView.draw();
      if (calm) setTimeout(() => requestAnimationFrame(draw), 500);
      else requestAnimationFrame(draw);
    };
    requestAnimationFrame(draw);
  }
}

/** Why the server takes nobody just now; "refused" when it is ready, null when it does not answer or does not say. */
async function notReady() {
  try {
    const answer = await fetch("readyz", { cache: "no-store" });
    if (answer.ok) return (await fetch("v1/models", { cache: "no-store" })).status === 401 ? "key_needed" : "refused";
    return answer.status === 503 ? ((await answer.json()).reason ?? "resource_exhausted") : null;
  } catch (error) {
    // No server, or one that speaks no JSON: what stands between us and it answers in its stead.
    if (error instanceof TypeError || error instanceof SyntaxError) return null;
    throw error;
  }
}

/** The same for who waits: a reason that passes by itself, or null. */
async function whatToWaitFor() {
  const reason = await notReady();
  return reason in WAITING ? reason : null;
}

function browserWorld() {
  return {
    WebSocket: globalThis.WebSocket,
    setTimeout: (action, delayMs) => setTimeout(action, delayMs),
    clearTimeout: (handle) => clearTimeout(handle),
    now,
    random: Math.random,
    probe: whatToWaitFor,
  };
}

new App();
