import assert from "node:assert/strict";
import { test } from "node:test";

import { Chunker, mixToMono, Resampler } from "../../../adapters/page/capture-worklet.js";
import { PlaybackQueue, QUEUE_SECONDS_MAX } from "../../../adapters/page/playback-worklet.js";
import { base64ToFloat, pcm16ToBase64, socketProtocols, socketUrl } from "../../../adapters/page/protocol.js";

const tone = (hz, rate, count) => Float32Array.from({ length: count }, (_, n) => Math.sin((2 * Math.PI * hz * n) / rate));
const rms = (samples) => Math.sqrt(samples.reduce((sum, x) => sum + x * x, 0) / samples.length);

function resample(samples, from, to, block = 128) {
  const resampler = new Resampler(from, to);
  const out = [];
  for (let at = 0; at < samples.length; at += block) out.push(...resampler.push(samples.subarray(at, at + block)));
  return Float32Array.from(out);
}

for (const rate of [16_000, 24_000, 44_100, 48_000, 96_000]) {
  test(`speech keeps its level and pitch from ${rate} Hz`, () => {
    const out = resample(tone(1_000, rate, rate), rate, 24_000);
    assert.ok(Math.abs(out.length - 24_000) < 60, `length ${out.length}`);
    const middle = out.subarray(2_000, 20_000);
    assert.ok(Math.abs(rms(middle) - Math.SQRT1_2) < 0.01, `level ${rms(middle)}`);
    let crossings = 0;
    for (let i = 1; i < middle.length; i += 1) if (middle[i - 1] < 0 && middle[i] >= 0) crossings += 1;
    assert.ok(Math.abs(crossings - 750) <= 1, `crossings ${crossings}`);
  });
}

test("what 24 kHz cannot carry is filtered away and does not come back as a false tone", () => {
  const out = resample(tone(16_000, 48_000, 24_000), 48_000, 24_000);
  assert.ok(rms(out.subarray(1_000, 10_000)) < 0.001);
});

test("the size of the blocks changes nothing", () => {
  const input = tone(440, 44_100, 8_000);
  assert.deepEqual(resample(input, 44_100, 24_000, 128), resample(input, 44_100, 24_000, 333));
});

test("chunks are 100 ms with five levels, and nothing is lost between them", () => {
  const chunker = new Chunker();
  const chunks = [1_000, 2_000, 3_000].flatMap((count) => chunker.push(new Float32Array(count).fill(0.5)));
  assert.equal(chunks.length, 2);
  assert.equal(chunker.filled, 6_000 - 2 * 2_400);
  assert.equal(chunks[0].pcm[0], 16_384);
  assert.deepEqual(chunks[0].levels, [0.5, 0.5, 0.5, 0.5, 0.5]);
});

test("channels are mixed, and a missing device is silence", () => {
  assert.deepEqual(mixToMono([Float32Array.of(1, 0), Float32Array.of(0, 1)], 2), Float32Array.of(0.5, 0.5));
  assert.equal(mixToMono([], 128).length, 128);
});

test("pcm16 survives base64", () => {
  const pcm = Int16Array.of(0, 1, -1, 32_767, -32_768, 12_345);
  const floats = base64ToFloat(pcm16ToBase64(pcm));
  assert.deepEqual(Int16Array.from(floats, (x) => x * 32_768), pcm);
});

const ones = (count) => new Float32Array(count).fill(1);

function render(queue, count) {
  const out = new Float32Array(count);
  const events = queue.render(out);
  return { out, events: events.map(({ type, id, played }) => `${type} ${id} ${played}`), sounding: out.filter((x) => x !== 0).length };
}

test("playback waits for the prebuffer, then counts each rendered sample", () => {
  const queue = new PlaybackQueue(1_000, 100);
  queue.push("a", ones(60));
  assert.equal(render(queue, 50).sounding, 0);
  queue.push("a", ones(60));
  assert.deepEqual(render(queue, 50).events, ["started a 0"]);
  assert.deepEqual(queue.current, { id: "a", played: 50, queued: 70 });
});

test("a short answer that is complete does not wait", () => {
  const queue = new PlaybackQueue(1_000, 100);
  queue.push("a", ones(30));
  queue.end("a");
  const { events, sounding } = render(queue, 50);
  assert.deepEqual(events, ["started a 0", "finished a 30"]);
  assert.equal(sounding, 30);
});

test("an underrun pauses until the prebuffer is full again, and silence is not counted as played", () => {
  const queue = new PlaybackQueue(1_000, 40);
  queue.push("a", ones(40));
  assert.deepEqual(render(queue, 50).events, ["started a 0", "underrun a 40"]);
  queue.push("a", ones(20));
  assert.equal(render(queue, 50).sounding, 0);
  queue.push("a", ones(20));
  assert.equal(render(queue, 20).sounding, 20);
  assert.equal(queue.current.played, 60);
  assert.equal(queue.underruns, 1);
});

test("a flush silences at once but for a fade of 5 ms, and tells what was and was not heard", () => {
  const queue = new PlaybackQueue(1_000, 10);
  queue.push("a", ones(100));
  queue.push("b", ones(30));
  render(queue, 25);
  assert.deepEqual(queue.flush(), [{ id: "a", played: 25, unheard: 75 }, { id: "b", played: 0, unheard: 30 }]);
  const { out, events } = render(queue, 50);
  assert.deepEqual(events, []);
  assert.ok(out[0] < 1 && out[0] > out[3] && out[5] === 0);
  assert.equal(queue.queued, 0);
  assert.equal(queue.chunks, 0);
});

test("a flush of one response leaves the next one alone", () => {
  const queue = new PlaybackQueue(1_000, 10);
  queue.push("a", ones(100));
  queue.push("b", ones(30));
  render(queue, 25);
  assert.deepEqual(queue.flush("a"), [{ id: "a", played: 25, unheard: 75 }]);
  assert.deepEqual(queue.flush("a"), []);
  assert.equal(queue.queued, 30);
  assert.deepEqual(render(queue, 20).events, ["started b 0"]);
});

test("answers play one after the other within one render quantum", () => {
  const queue = new PlaybackQueue(1_000, 10);
  for (const id of ["a", "b"]) {
    queue.push(id, ones(20));
    queue.end(id);
  }
  assert.deepEqual(render(queue, 50).events, ["started a 0", "finished a 20", "started b 0", "finished b 20"]);
});

test("the queue is bounded and says so", () => {
  const queue = new PlaybackQueue(10, 0);
  assert.ok(queue.push("a", ones(10 * QUEUE_SECONDS_MAX)));
  assert.ok(!queue.push("a", ones(1)));
  assert.equal(queue.overflows, 1);
});

test("the socket is on the page's own server, and a key travels as a subprotocol", () => {
  const place = new URL("https://example.org:8765/#key=s3cret");
  assert.equal(socketUrl(place), "wss://example.org:8765/v1/realtime?duplex=1&autostart=0");
  assert.deepEqual(socketProtocols(place), ["realtime", "openai-insecure-api-key.s3cret"]);
  assert.deepEqual(socketProtocols(new URL("http://localhost/")), []);
});
