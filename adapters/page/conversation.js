// What was said, as a fold over the server's events. No DOM, no audio, no clock: ``apply`` returns what to do as data.
//
// Actions: {type: "play", id, audio}, {type: "end", id}, {type: "cut", id}, {type: "notice", code, message},
// {type: "speech", phase: started | stopped, inputMs: on the clock of the input}, {type: "overheard", speechMs}. ``id`` is
// a response id.
//
// An answer's text arrives ahead of its sound. It counts as heard only as far as its audio was really played; what is
// left of an answer that was cut is shown struck out.

import { charsAt, countChars, mergeMarks, splitAtWord } from "./heard.js";
import { samplesToMs } from "./protocol.js";

export const TURNS_MAX = 400;

/** One turn. ``phase``: live (being said), spoken (finished), cut, broken (the server could not finish it). */
function newTurn(id, role, extra = {}) {
  return {
    id, role, phase: "live", text: "", responseId: null, marks: [], receivedMs: 0, playedMs: 0, serverHeard: "",
    hasAudio: false, ...extra,
  };
}

export class Conversation {
  constructor() {
    this.clear();
  }

  clear() {
    this.turns = [];
    this.activeResponse = null;
    this.changed = new Set();
  }

  /** Folds one server event; returns actions. Unknown events change nothing. */
  apply(event) {
    const handler = HANDLERS[event.type];
    return handler === undefined ? [] : (handler(this, event) ?? []);
  }

  /** The player's report: ``playedMs`` of a response have been heard. */
  heard(responseId, playedMs) {
    const turn = this.#byResponse(responseId);
    if (turn === undefined || playedMs <= turn.playedMs) return;
    turn.playedMs = playedMs;
    this.changed.add(turn);
  }

  /** A response was cut on this side (button, typed message) before the server said so. */
  cutHere(responseId) {
    const turn = this.#byResponse(responseId);
    if (turn !== undefined) this.mark(turn, "cut");
  }

  /** A typed message. ``id`` is the item id that the server will use, too. */
  typed(id, text) {
    this.add(newTurn(id, "user", { phase: "spoken", text }));
  }

  /** The turns that changed since the last call. */
  takeChanged() {
    const changed = [...this.changed];
    this.changed.clear();
    return changed;
  }

  add(turn) {
    this.turns.push(turn);
    if (this.turns.length > TURNS_MAX) this.turns.splice(0, this.turns.length - TURNS_MAX);
    this.changed.add(turn);
    return turn;
  }

  remove(turn) {
    this.turns = this.turns.filter((other) => other !== turn);
    turn.phase = "removed";
    this.changed.add(turn);
  }

  mark(turn, phase) {
    turn.phase = phase;
    this.changed.add(turn);
  }

  find(itemId) {
    return this.turns.find((turn) => turn.id === itemId);
  }

  #byResponse(responseId) {
    return this.turns.findLast((turn) => turn.responseId === responseId);
  }

  /** The turn of a response, made at the first sign of it. */
  answer(event) {
    const known = this.#byResponse(event.response_id);
    if (known !== undefined) return known;
    return this.add(newTurn(event.item_id ?? event.item?.id ?? event.response_id, "assistant", { responseId: event.response_id }));
  }

  /** The turn of speech that is being said. */
  speech(itemId) {
    return this.find(itemId) ?? this.add(newTurn(itemId, "user"));
  }

  byResponse(responseId) {
    return this.#byResponse(responseId);
  }
}

/** Splits an answer for showing: what was heard, what is still to come, what will never be heard. */
export function partsOf(turn) {
  if (turn.role === "user") return { heard: turn.text, coming: "", unheard: "" };
  const settled = turn.phase !== "live" && turn.phase !== "cut";
  if (!turn.hasAudio && turn.phase !== "cut") return { heard: turn.text, coming: "", unheard: "" };
  const total = countChars(turn.text);
  const whole = settled && turn.playedMs >= turn.receivedMs - 20;
  let chars = whole ? total : charsAt(turn.marks, turn.playedMs, total, turn.receivedMs);
  if (turn.phase === "cut" && turn.text.startsWith(turn.serverHeard)) {
    chars = Math.max(chars, countChars(turn.serverHeard));
  }
  const [heard, rest] = splitAtWord(turn.text, chars);
  return turn.phase === "cut" ? { heard, coming: "", unheard: rest } : { heard, coming: rest, unheard: "" };
}

function audioDelta(talk, event) {
  const turn = talk.answer(event);
  // A chunk of an answer that was cut here already: in flight when the button was pressed.
  if (turn.phase === "cut") return [];
  turn.hasAudio = true;
  turn.marks = mergeMarks(turn.marks, event.metadata?.audio_text_marks);
  turn.receivedMs += samplesToMs(base64Bytes(event.delta) / 2);
  talk.changed.add(turn);
  return [{ type: "play", id: event.response_id, audio: event.delta }];
}

function base64Bytes(text) {
  const padding = text.endsWith("==") ? 2 : text.endsWith("=") ? 1 : 0;
  return (text.length / 4) * 3 - padding;
}

function textDelta(talk, event) {
  const turn = talk.answer(event);
  turn.text += event.delta;
  talk.changed.add(turn);
}

function wholeText(talk, event) {
  const turn = talk.answer(event);
  const text = event.transcript ?? event.text ?? "";
  if (turn.phase !== "cut" && text.length > turn.text.length) turn.text = text;
  talk.changed.add(turn);
}

function responseDone(talk, { response }) {
  const turn = talk.byResponse(response.id);
  if (talk.activeResponse === response.id) talk.activeResponse = null;
  if (response.status === "cancelled") {
    if (turn !== undefined) {
      turn.serverHeard = transcriptOf(response);
      talk.mark(turn, "cut");
    }
    return [{ type: "cut", id: response.id }];
  }
  if (turn !== undefined) talk.mark(turn, response.status === "completed" ? "spoken" : "broken");
  const end = { type: "end", id: response.id };
  if (response.status === "completed") return [end];
  const details = response.status_details;
  return [end, { type: "notice", code: "answer_broken", message: details?.error?.message ?? details?.reason ?? "" }];
}

function transcriptOf(response) {
  const content = response.output?.[0]?.content?.[0];
  return content?.transcript ?? content?.text ?? "";
}

function cleared(talk, event) {
  const id = event.response_id;
  if (id === undefined || id === null) return [{ type: "cut", id: null }];
  const turn = talk.byResponse(id);
  if (turn !== undefined && turn.playedMs < turn.receivedMs) talk.mark(turn, "cut");
  return [{ type: "cut", id }];
}

function overlapDecision(talk, event) {
  if (event.action === "barge_in") return [{ type: "cut", id: null }];
  // "mm-hmm" over an answer is no turn of its own.
  const said = talk.find(event.metadata?.item_id);
  if (said?.phase === "live" && said.text === "") talk.remove(said);
  return [{ type: "overheard", speechMs: event.metadata?.speech_ms ?? 0 }];
}

function transcribed(talk, event) {
  const text = (event.transcript ?? "").trim();
  const known = talk.find(event.item_id);
  if (text === "") {
    if (known !== undefined) talk.remove(known);
    return;
  }
  const turn = talk.speech(event.item_id);
  turn.text = text;
  talk.mark(turn, "spoken");
}

function itemAdded(talk, event) {
  const { item } = event;
  if (item?.role !== "user" || talk.find(item.id) !== undefined) return;
  const text = (item.content ?? []).map((part) => part.text ?? part.transcript ?? "").join(" ").trim();
  if (text !== "") talk.typed(item.id, text);
}

function itemGone(talk, event) {
  const turn = talk.find(event.item_id);
  if (turn !== undefined) talk.remove(turn);
}

function truncated(talk, event) {
  const turn = talk.find(event.item_id);
  if (turn === undefined || turn.phase === "live") return;
  turn.playedMs = Math.max(turn.playedMs, event.audio_end_ms);
  talk.changed.add(turn);
}

function failure(_talk, event) {
  const error = typeof event.error === "object" ? event.error : event;
  return [{ type: "notice", code: error.code ?? "error", message: error.message ?? String(event.error ?? "") }];
}

function responseCreated(talk, event) {
  talk.activeResponse = event.response.id;
}

function speechStarted(talk, event) {
  talk.speech(event.item_id);
  return [{ type: "speech", phase: "started", inputMs: event.audio_start_ms }];
}

const HANDLERS = {
  "conversation.item.added": itemAdded,
  "conversation.item.deleted": itemGone,
  "conversation.item.input_audio_transcription.completed": transcribed,
  "conversation.item.input_audio_transcription.failed": (talk, event) => transcribed(talk, { ...event, transcript: "" }),
  "conversation.item.truncated": truncated,
  "error": failure,
  "input_audio_buffer.speech_started": speechStarted,
  "input_audio_buffer.speech_stopped": (_talk, event) => [{ type: "speech", phase: "stopped", inputMs: event.audio_end_ms }],
  "output_audio_buffer.cleared": cleared,
  "overlap.decision": overlapDecision,
  "response.created": responseCreated,
  "response.done": responseDone,
  "response.output_audio.delta": audioDelta,
  "response.output_audio.done": (_talk, event) => [{ type: "end", id: event.response_id }],
  "response.output_audio_transcript.delta": textDelta,
  "response.output_audio_transcript.done": wholeText,
  "response.output_text.delta": textDelta,
  "response.output_text.done": wholeText,
};
