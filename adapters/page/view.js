// The page's elements: shows what it is told, knows nothing of sockets or sound.

import { partsOf } from "./conversation.js";

const STATE_TEXT = {
  idle: "Not connected",
  connecting: "Connecting…",
  open: "Connected",
  reconnecting: "Reconnecting…",
  replaced: "Elsewhere",
  ended: "Ended",
  failed: "Not connected",
};

const HINTS = {
  idle: "Press Start and speak. You can interrupt at any moment: just speak, and the assistant yields.",
  running: "Just speak, or pick a question. You can interrupt at any moment, and the assistant yields.",
};
const ACTION_TEXT = { start: "Start", retry: "Try again" };
const NEAR_BOTTOM_PX = 80;
const PASSING_MS = 9_000;

export class View {
  constructor(root = document) {
    const find = (id) => root.getElementById(id);
    this.root = root;
    this.turns = find("turns");
    this.talk = find("talk");
    this.welcome = find("welcome");
    this.hint = find("hint");
    this.statePill = find("state");
    this.activity = find("activity");
    this.latency = find("latency");
    this.notice = find("notice");
    this.startButton = find("start");
    this.muteButton = find("mute");
    this.interruptButton = find("interrupt");
    this.form = find("write");
    this.message = find("message");
    this.sendButton = find("send");
    this.spoken = find("spoken");
    this.canvas = find("lanes");
    this.elements = new Map();
    this.noticeTimer = null;
    this.#followTheEnd();
  }

  /** Who looks at the newest words goes on doing so when a notice, or a phone's keyboard, takes room away. */
  #followTheEnd() {
    this.follow = true;
    this.talk.addEventListener("scroll", () => {
      const { scrollTop, scrollHeight, clientHeight } = this.talk;
      // A change of size scrolls, too: only a scroll at the old size is the user's.
      if (clientHeight === this.talkHeight) this.follow = scrollHeight - scrollTop - clientHeight < NEAR_BOTTOM_PX;
    });
    new ResizeObserver(() => {
      this.talkHeight = this.talk.clientHeight;
      if (this.follow && this.turns.childElementCount > 0) this.talk.scrollTop = this.talk.scrollHeight;
    }).observe(this.talk);
  }

  showState(state) {
    this.statePill.dataset.state = state;
    this.statePill.textContent = STATE_TEXT[state];
    const running = ["connecting", "open", "reconnecting"].includes(state);
    this.startButton.dataset.running = String(running);
    this.startButton.querySelector(".label").textContent = running ? "End" : "Start";
    this.hint.textContent = HINTS[running ? "running" : "idle"];
  }

  showControls({ offerMicrophone, isOpen, muted, canInterrupt }) {
    const silenced = isOpen && muted;
    this.muteButton.disabled = !isOpen && !offerMicrophone;
    // The label says what the button does next, so it is no toggle for screen readers: "Unmute, pressed" would be neither.
    this.muteButton.dataset.muted = String(silenced);
    this.muteButton.querySelector(".label").textContent = offerMicrophone ? "Use mic" : silenced ? "Unmute" : "Mute";
    this.interruptButton.disabled = !canInterrupt;
  }

  /** ``kind``: idle, wait, listen, hear, speak, muted. */
  showActivity(kind, text) {
    if (this.activity.textContent === text) return;
    this.activity.dataset.kind = kind;
    this.activity.textContent = text;
  }

  showLatency(ms) {
    this.latency.textContent = ms === null ? "–" : `${(ms / 1000).toFixed(2)} s`;
  }

  /** For screen readers: said once, not shown. */
  say(text) {
    this.spoken.textContent = text;
  }

  showNotice(notice, onAction) {
    clearTimeout(this.noticeTimer);
    const { document } = globalThis;
    const title = document.createElement("strong");
    title.textContent = notice.title;
    const body = document.createElement("p");
    body.textContent = notice.body;
    const words = document.createElement("div");
    words.append(title, body);
    this.notice.replaceChildren(words, ...this.#noticeButtons(notice, onAction));
    this.notice.dataset.code = notice.code;
    this.notice.dataset.calm = String(notice.calm === true);
    this.notice.hidden = false;
    if (notice.passing) this.noticeTimer = setTimeout(() => this.hideNotice(), PASSING_MS);
  }

  #noticeButtons(notice, onAction) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "small";
    button.textContent = notice.action === undefined ? "Close" : ACTION_TEXT[notice.action];
    button.addEventListener("click", () => {
      this.hideNotice();
      if (notice.action !== undefined) onAction(notice.action);
    });
    return [button];
  }

  hideNotice() {
    clearTimeout(this.noticeTimer);
    this.notice.hidden = true;
    this.notice.replaceChildren();
  }

  /** Hides the notice of this code, if it is shown: it is not true any more. */
  takeBack(code) {
    if (this.notice.dataset.code === code) this.hideNotice();
  }

  /** A line across the transcript, where one conversation ends and another begins. */
  divide(text) {
    if (this.turns.childElementCount === 0) return;
    const line = document.createElement("li");
    line.className = "divider";
    line.textContent = text;
    this.turns.append(line);
  }

  showTurns(turns) {
    if (turns.length === 0) return;
    for (const turn of turns) this.#showTurn(turn);
    this.welcome.hidden = this.turns.childElementCount > 0;
    if (this.follow) this.talk.scrollTop = this.talk.scrollHeight;
  }

  #showTurn(turn) {
    let element = this.elements.get(turn);
    if (turn.phase === "removed") {
      element?.remove();
      this.elements.delete(turn);
      return;
    }
    if (element === undefined) {
      element = this.#newTurn(turn);
      this.elements.set(turn, element);
      this.turns.append(element);
    }
    element.dataset.phase = turn.phase;
    const parts = partsOf(turn);
    for (const name of ["heard", "coming", "unheard"]) {
      const part = element.querySelector(`.${name}`);
      if (part.textContent !== parts[name]) part.textContent = parts[name];
      part.hidden = parts[name] === "";
    }
    element.querySelector(".waiting").hidden = turn.phase !== "live" || turn.text !== "";
    element.querySelector(".foot").textContent = footOf(turn, parts);
  }

  #newTurn(turn) {
    const element = document.getElementById("turn-template").content.firstElementChild.cloneNode(true);
    element.classList.add(turn.role === "user" ? "you" : "it");
    element.querySelector(".who").textContent = turn.role === "user" ? "You" : "Assistant";
    element.dataset.id = turn.id;
    return element;
  }
}

function footOf(turn, parts) {
  if (turn.phase === "broken") return "The answer broke off here";
  if (turn.phase !== "cut") return "";
  if (parts.heard === "") return "Cut off before it was heard";
  return `Cut off after ${(turn.playedMs / 1000).toFixed(1)} s`;
}
