import assert from "node:assert/strict";
import { test } from "node:test";

import { SequenceTracker } from "../../../adapters/page/sequence.js";
import { Unconfirmed } from "../../../adapters/page/unconfirmed.js";

test("a duplicate is refused, an unnumbered event is not", () => {
  const stream = new SequenceTracker();
  assert.ok(stream.accept(1));
  assert.ok(stream.accept(undefined));
  assert.ok(!stream.accept(1));
  assert.equal(stream.duplicates, 1);
});

test("an announced gap is a cut, an unannounced one is a loss", () => {
  const stream = new SequenceTracker();
  for (const number of [1, 2, 5, 8]) stream.accept(number);
  assert.equal(stream.unexplained, 4);
  stream.announce([[3, 4]]);
  assert.equal(stream.unexplained, 2);
  stream.announce([[6, 6]]);
  assert.deepEqual(stream.holes, [[7, 7]]);
});

test("an announcement in the middle of a hole leaves both ends", () => {
  const stream = new SequenceTracker();
  stream.accept(10);
  stream.announce([[4, 6]]);
  assert.deepEqual(stream.holes, [[1, 3], [7, 9]]);
});

test("a resume that skips the next numbers goes on after them", () => {
  const stream = new SequenceTracker();
  stream.accept(1);
  stream.announce([[2, 5]]);
  assert.equal(stream.last, 5);
  assert.ok(stream.accept(6));
  assert.equal(stream.unexplained, 0);
});

test("an ack is given once", () => {
  const stream = new SequenceTracker();
  assert.equal(stream.takeAck(), null);
  stream.accept(1);
  assert.equal(stream.takeAck(), 1);
  assert.equal(stream.takeAck(), null);
});

const kept = (list) => list.items.map(({ event }) => event.event_id);
const keep = (list, id, nowMs, extra = {}) => list.add({ event_id: id }, { text: "x".repeat(10), nowMs, audioMs: 100, sent: false, ...extra });

test("what is durable is dropped, the rest is sent again in order", () => {
  const list = new Unconfirmed();
  for (const id of ["a", "b", "c"]) keep(list, id, 0);
  list.confirm("b");
  assert.deepEqual(kept(list), ["c"]);
  assert.equal(list.bytes, 10);
  assert.deepEqual(list.takeAll(), ["x".repeat(10)]);
  list.confirm("unknown");
  assert.deepEqual(kept(list), ["c"]);
  list.confirm(null);
  assert.deepEqual(kept(list), ["c"]);
});

test("input older than ten seconds is given up, and unsent input that is given up is counted", () => {
  const list = new Unconfirmed();
  keep(list, "a", 0, { sent: true });
  keep(list, "b", 10);
  keep(list, "c", 10_011);
  assert.deepEqual(kept(list), ["c"]);
  assert.equal(list.lostMs, 100);
});

test("the list is bounded in items and in bytes", () => {
  const list = new Unconfirmed({ itemsMax: 2 });
  for (const id of ["a", "b", "c"]) keep(list, id, 0);
  assert.deepEqual(kept(list), ["b", "c"]);
  const small = new Unconfirmed({ bytesMax: 25 });
  for (const id of ["a", "b", "c"]) keep(small, id, 0);
  assert.deepEqual(kept(small), ["b", "c"]);
  assert.equal(small.bytes, 20);
});
