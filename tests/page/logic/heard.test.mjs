import assert from "node:assert/strict";
import { test } from "node:test";

import { AckPacer, charsAt, mergeMarks, splitAtWord } from "../../../adapters/page/heard.js";

const mark = (text_chars, audio_end_ms) => ({ text_chars, audio_end_ms });

test("between two marks the text is heard in proportion", () => {
  const marks = [mark(10, 1000), mark(30, 2000)];
  assert.equal(charsAt(marks, 0, 30, 2000), 0);
  assert.equal(charsAt(marks, 500, 30, 2000), 5);
  assert.equal(charsAt(marks, 1000, 30, 2000), 10);
  assert.equal(charsAt(marks, 1500, 30, 2000), 20);
  assert.equal(charsAt(marks, 9000, 30, 2000), 30);
});

test("text beyond the last mark has no audio yet, so it was not heard", () => {
  assert.equal(charsAt([mark(10, 1000)], 5000, 40, 1000), 10);
});

test("without marks the whole is taken in proportion, and no audio means nothing heard", () => {
  assert.equal(charsAt([], 500, 40, 1000), 20);
  assert.equal(charsAt([], 0, 40, 0), 40);
  assert.equal(charsAt([], 0, 40, 1000), 0);
});

test("marks are merged whether a delta carries its own or all of them", () => {
  const first = mergeMarks([], [mark(5, 500)]);
  assert.deepEqual(mergeMarks(first, [mark(9, 900)]), [mark(5, 500), mark(9, 900)]);
  assert.deepEqual(mergeMarks(first, [mark(5, 500), mark(9, 900)]), [mark(5, 500), mark(9, 900)]);
  assert.deepEqual(mergeMarks(first, undefined), first);
  assert.deepEqual(mergeMarks(first, [mark(4, 700)]), first);
});

test("a cut never falls inside a word", () => {
  assert.deepEqual(splitAtWord("The capital of France", 8), ["The ", "capital of France"]);
  assert.deepEqual(splitAtWord("The capital of France", 11), ["The capital ", "of France"]);
  assert.deepEqual(splitAtWord("It’s late", 3), ["", "It’s late"]);
  assert.deepEqual(splitAtWord("Paris.", 5), ["Paris", "."]);
  assert.deepEqual(splitAtWord("Paris", 99), ["Paris", ""]);
  assert.deepEqual(splitAtWord("Paris", -1), ["", "Paris"]);
});

test("characters are code points, and scripts without spaces are cut anywhere", () => {
  assert.deepEqual(splitAtWord("🐈🐈 cat", 1), ["🐈", "🐈 cat"]);
  assert.deepEqual(splitAtWord("你好世界", 2), ["你好", "世界"]);
});

test("heard and unheard always make up the whole text", () => {
  const text = "Once upon a time, a cat named Ménuet 🐈 lived by the sea: 你好.";
  for (let chars = 0; chars <= text.length; chars += 1) assert.equal(splitAtWord(text, chars).join(""), text);
});

test("acks come every 250 ms, at once for a new response, and never go back", () => {
  const acks = new AckPacer(250);
  assert.equal(acks.progress("a", 10.9, 0), 10);
  assert.equal(acks.progress("a", 100, 90), null);
  assert.equal(acks.progress("a", 270, 260), 270);
  assert.equal(acks.final("a", 300, 270), 300);
  assert.equal(acks.final("a", 300, 280), null);
  assert.equal(acks.progress("a", 200, 900), null);
  assert.equal(acks.progress("b", 0, 901), 0);
});
