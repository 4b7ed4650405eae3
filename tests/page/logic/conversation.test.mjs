import assert from "node:assert/strict";
import { test } from "node:test";

import { Conversation, partsOf, TURNS_MAX } from "../../../adapters/page/conversation.js";
import { LaneHistory } from "../../../adapters/page/lanes.js";
import { LatencyMeter, SteadyClock } from "../../../adapters/page/latency.js";
import { noticeFor } from "../../../adapters/page/notices.js";

const SECOND = Buffer.alloc(48_000).toString("base64");

/** An answer of four words, one word a second. */
function answer(talk, id = "r1") {
  talk.apply({ type: "response.created", response: { id } });
  let chars = 0;
  ["One", " two", " three", " four"].forEach((word, n) => {
    chars += word.length;
    const metadata = { audio_text_marks: [{ text_chars: chars, audio_end_ms: (n + 1) * 1000 }] };
    talk.apply({ type: "response.output_audio.delta", response_id: id, item_id: `i_${id}`, delta: SECOND, metadata });
    talk.apply({ type: "response.output_audio_transcript.delta", response_id: id, item_id: `i_${id}`, delta: word });
  });
}

const done = (id, status, transcript = "") => ({
  type: "response.done",
  response: { id, status, output: [{ content: [{ type: "output_audio", transcript }] }], metadata: {} },
});

const shown = (talk) => partsOf(talk.turns.at(-1));

test("while an answer plays, its text is heard word by word", () => {
  const talk = new Conversation();
  answer(talk);
  assert.deepEqual(shown(talk), { heard: "", coming: "One two three four", unheard: "" });
  talk.heard("r1", 2_000);
  assert.deepEqual(shown(talk), { heard: "One two ", coming: "three four", unheard: "" });
  assert.deepEqual(talk.apply(done("r1", "completed")), [{ type: "end", id: "r1" }]);
  assert.equal(shown(talk).coming, "three four");
  talk.heard("r1", 4_000);
  assert.deepEqual(shown(talk), { heard: "One two three four", coming: "", unheard: "" });
});

test("a cut answer keeps what was heard; the rest is struck out", () => {
  const talk = new Conversation();
  answer(talk);
  talk.heard("r1", 2_100);
  assert.deepEqual(talk.apply(done("r1", "cancelled", "One two")), [{ type: "cut", id: "r1" }]);
  assert.deepEqual(shown(talk), { heard: "One two ", coming: "", unheard: "three four" });
  talk.heard("r1", 3_000);
  assert.equal(shown(talk).heard, "One two three ");
});

test("the server may know of more than the page heard of", () => {
  const talk = new Conversation();
  answer(talk);
  talk.apply(done("r1", "cancelled", "One two three"));
  assert.deepEqual(shown(talk), { heard: "One two three ", coming: "", unheard: "four" });
});

test("audio of an answer that was cut here is not played any more", () => {
  const talk = new Conversation();
  answer(talk);
  talk.cutHere("r1");
  const late = talk.apply({ type: "response.output_audio.delta", response_id: "r1", item_id: "i_r1", delta: SECOND });
  assert.deepEqual(late, []);
  assert.equal(talk.turns.at(-1).receivedMs, 4_000);
});

test("an answer that was finished on the server and still playing is cut by output_audio_buffer.cleared", () => {
  const talk = new Conversation();
  answer(talk);
  talk.apply(done("r1", "completed"));
  talk.heard("r1", 1_000);
  assert.deepEqual(talk.apply({ type: "output_audio_buffer.cleared", response_id: "r1" }), [{ type: "cut", id: "r1" }]);
  assert.deepEqual(shown(talk), { heard: "One ", coming: "", unheard: "two three four" });
});

test("an answer that was heard to its end is not marked as cut", () => {
  const talk = new Conversation();
  answer(talk);
  talk.apply(done("r1", "completed"));
  talk.heard("r1", 4_000);
  talk.apply({ type: "output_audio_buffer.cleared", response_id: "r1" });
  assert.equal(talk.turns.at(-1).phase, "spoken");
});

test("speech has its place where it began, and gets its words later", () => {
  const talk = new Conversation();
  talk.apply({ type: "input_audio_buffer.speech_started", item_id: "u1", audio_start_ms: 0 });
  assert.equal(talk.turns[0].phase, "live");
  answer(talk);
  talk.apply({ type: "conversation.item.input_audio_transcription.completed", item_id: "u1", transcript: " Count. " });
  assert.deepEqual(talk.turns.map(({ text }) => text), ["Count.", "One two three four"]);
});

test("a remark that was never shown takes no other turn with it", () => {
  const talk = new Conversation();
  talk.apply({ type: "input_audio_buffer.speech_started", item_id: "u1", audio_start_ms: 0 });
  answer(talk);
  talk.apply({ type: "overlap.decision", action: "drop", metadata: { item_id: "u2", speech_ms: 300 } });
  assert.deepEqual(talk.turns.map(({ id }) => id), ["u1", "i_r1"]);
});

test("mm-hmm over an answer leaves no turn; a barge-in cuts", () => {
  const talk = new Conversation();
  answer(talk);
  talk.apply({ type: "input_audio_buffer.speech_started", item_id: "u2", audio_start_ms: 0 });
  const remark = { type: "overlap.decision", action: "listen", metadata: { item_id: "u2", speech_ms: 400 } };
  assert.deepEqual(talk.apply(remark), [{ type: "overheard", speechMs: 400 }]);
  assert.equal(talk.turns.length, 1);
  talk.apply({ type: "input_audio_buffer.speech_started", item_id: "u3", audio_start_ms: 0 });
  assert.deepEqual(talk.apply({ type: "overlap.decision", action: "barge_in" }), [{ type: "cut", id: null }]);
  assert.equal(talk.turns.length, 2);
});

test("noise without words leaves no turn", () => {
  const talk = new Conversation();
  talk.apply({ type: "input_audio_buffer.speech_started", item_id: "u1", audio_start_ms: 0 });
  talk.apply({ type: "conversation.item.input_audio_transcription.completed", item_id: "u1", transcript: "" });
  assert.deepEqual(talk.turns, []);
  assert.equal(talk.takeChanged()[0].phase, "removed");
});

test("a typed message and its echo are one turn", () => {
  const talk = new Conversation();
  talk.typed("t1", "Hello");
  talk.apply({ type: "conversation.item.added", item: { id: "t1", role: "user", content: [{ type: "input_text", text: "Hello" }] } });
  assert.equal(talk.turns.length, 1);
});

test("an answer without sound is simply shown", () => {
  const talk = new Conversation();
  talk.apply({ type: "response.output_text.delta", response_id: "r1", item_id: "i", delta: "Hi" });
  talk.apply(done("r1", "completed"));
  assert.deepEqual(shown(talk), { heard: "Hi", coming: "", unheard: "" });
});

test("a broken answer says so; unknown events change nothing; turns are bounded", () => {
  const talk = new Conversation();
  answer(talk);
  assert.equal(talk.apply(done("r1", "incomplete"))[1].code, "answer_broken");
  assert.equal(talk.turns[0].phase, "broken");
  assert.deepEqual(talk.apply({ type: "response.speak" }), []);
  for (let n = 0; n < TURNS_MAX + 5; n += 1) talk.typed(`t${n}`, "x");
  assert.equal(talk.turns.length, TURNS_MAX);
});

test("the wait is measured from the last loud moment, not from the detector's verdict", () => {
  const meter = new LatencyMeter();
  for (let ms = 0; ms <= 2_000; ms += 20) meter.level(ms, ms >= 500 && ms <= 1_500 ? 0.2 : 0.002);
  meter.speechStarted(600);
  meter.speechStopped(1_900);
  assert.equal(meter.answered(2_200), 700);
  assert.equal(meter.answered(2_300), null);
});

test("lanes forget what is older than a minute", () => {
  const lanes = new LaneHistory();
  for (let ms = 0; ms < 120_000; ms += 20) lanes.level("you", ms, 0.1);
  assert.ok(lanes.levels.you.size <= 60_000 / 75 + 2);
  lanes.speechStarted(1_000);
  lanes.speechStopped(2_000);
  assert.ok(lanes.speechAt(1_500));
  assert.equal(lanes.speechAt(2_500), undefined);
});

test("what was left unsaid makes room for the next answer", () => {
  const lanes = new LaneHistory();
  lanes.cut(1_000, 3_000);
  lanes.answerStarted(2_500);
  lanes.answerStarted(9_000);
  assert.deepEqual(lanes.cuts, [{ atMs: 1_000, unheardMs: 1_500 }]);
});

test("every notice says what to do; races say nothing", () => {
  assert.equal(noticeFor("response_not_active"), null);
  assert.equal(noticeFor("stopped", "", true), null);
  assert.match(noticeFor("microphone_denied").body, /address bar/);
  assert.equal(noticeFor("some_new_reason", "", true).action, "start");
  assert.match(noticeFor("bad_audio", "Odd length").body, /Odd length\. /);
});

test("late reports do not shift the clock of a stream; a pause does", () => {
  const clock = new SteadyClock();
  assert.equal(clock.at(0, 1_030), 1_030);
  assert.equal(clock.at(50, 1_060), 1_060);
  assert.equal(clock.at(100, 1_200), 1_110);
  assert.equal(clock.at(150, 2_200), 2_200);
});
