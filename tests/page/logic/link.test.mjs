import assert from "node:assert/strict";
import { test } from "node:test";

import { Link, retryDelayMs } from "../../../adapters/page/link.js";

class FakeSocket {
  constructor(url) {
    Object.assign(this, { url, sent: [], readyState: 0, bufferedAmount: 0 });
    FakeSocket.all.push(this);
  }
  accept() {
    this.readyState = 1;
    this.onopen();
  }
  send(text) {
    this.sent.push(JSON.parse(text));
  }
  say(event) {
    this.onmessage({ data: JSON.stringify(event) });
  }
  close(code = 1000, reason = "") {
    if (this.readyState === 3) return;
    this.readyState = 3;
    this.onclose({ code, reason });
  }
  get types() {
    return this.sent.map(({ type }) => type);
  }
}

function world() {
  const timers = new Map();
  let nowMs = 0;
  let handles = 0;
  return {
    reason: null,
    probe() {
      return Promise.resolve(this.reason);
    },
    WebSocket: FakeSocket,
    now: () => nowMs,
    random: () => 1,
    setTimeout: (action, delayMs) => timers.set((handles += 1), { action, atMs: nowMs + delayMs }) && handles,
    clearTimeout: (handle) => timers.delete(handle),
    sleep(ms) {
      const untilMs = nowMs + ms;
      for (;;) {
        const due = [...timers].filter(([, { atMs }]) => atMs <= untilMs).sort((a, b) => a[1].atMs - b[1].atMs)[0];
        if (due === undefined) break;
        timers.delete(due[0]);
        nowMs = due[1].atMs;
        due[1].action();
      }
      nowMs = untilMs;
    },
  };
}

function talk() {
  FakeSocket.all = [];
  const place = world();
  const seen = { events: [], states: [] };
  let ids = 0;
  const link = new Link({
    url: "ws://host/v1/realtime",
    session: () => ({ type: "realtime" }),
    onEvent: (event) => seen.events.push(event.type),
    onState: (state, detail) => seen.states.push(detail === null ? state : `${state}:${detail}`),
    newEventId: () => `e${(ids += 1)}`,
    world: place,
  });
  return { link, place, ...seen, get socket() { return FakeSocket.all.at(-1); } };
}

function opened() {
  const stage = talk();
  stage.link.start();
  stage.socket.accept();
  stage.socket.say({ type: "session.created", session: { id: "s1" }, attachment_generation: 1, resume_token: "t1" });
  stage.socket.say({ type: "session.updated", server_event_seq: 1 });
  return stage;
}

const append = { type: "input_audio_buffer.append", audio: "" };

test("the first frame asks for a session; input before the answer waits and is not lost", () => {
  const stage = talk();
  stage.link.start();
  stage.link.send(append, 100);
  stage.socket.accept();
  assert.deepEqual(stage.socket.types, ["session.update"]);
  stage.socket.say({ type: "session.created", session: { id: "s1" }, resume_token: "t1" });
  assert.deepEqual(stage.socket.types, ["session.update", "session.event_ack", "input_audio_buffer.append"]);
  assert.deepEqual(stage.states, ["connecting", "open"]);
});

test("events are acknowledged in batches", () => {
  const { socket, place } = opened();
  for (let number = 2; number <= 10; number += 1) socket.say({ type: "x", server_event_seq: number });
  place.sleep(500);
  assert.deepEqual(socket.sent.filter(({ type }) => type === "session.event_ack").map((ack) => ack.server_event_seq), [0, 10]);
});

test("a drop is resumed from the last number, and unconfirmed input goes out again under its old ids", () => {
  const stage = opened();
  const first = stage.socket;
  for (let i = 0; i < 3; i += 1) stage.link.send(append, 100);
  const ids = first.sent.filter(({ type }) => type === append.type).map(({ event_id }) => event_id);
  first.say({ type: "x", server_event_seq: 2 });
  first.close(1006);
  stage.link.send(append, 100);
  stage.place.sleep(250);
  const second = stage.socket;
  assert.notEqual(second, first);
  second.accept();
  const { event_id, ...resume } = second.sent[0];
  assert.deepEqual(resume, { type: "session.resume", session_id: "s1", resume_token: "t1", last_received_server_event_seq: 2 });
  second.say({ type: "session.resumed", session_id: "s1", session: {}, resume_token: "t2", skipped: [[3, 4]], last_event_id: ids[1] });
  const again = second.sent.filter(({ type }) => type === append.type).map((event) => event.event_id);
  assert.equal(again.length, 2);
  assert.equal(again[0], ids[2]);
  second.say({ type: "y", server_event_seq: 2 });
  second.say({ type: "y", server_event_seq: 5 });
  assert.equal(stage.events.filter((type) => type === "y").length, 1);
  assert.equal(stage.link.sequence.unexplained, 0);
  second.close(1006);
  stage.place.sleep(250);
  stage.socket.accept();
  assert.equal(stage.socket.sent[0].resume_token, "t2");
});

test("delays double up to five seconds and differ between clients", () => {
  assert.deepEqual([0, 1, 2, 3, 4, 5, 60].map((n) => retryDelayMs(n, () => 1)), [250, 500, 1000, 2000, 4000, 5000, 5000]);
  assert.equal(retryDelayMs(1, () => 0), 250);
});

test("after a minute without the server it gives up, and a later start resumes all the same", () => {
  const stage = opened();
  stage.socket.close(1006);
  for (let i = 0; i < 40 && stage.link.state === "reconnecting"; i += 1) {
    stage.place.sleep(5_000);
    stage.socket.close(1006);
  }
  assert.equal(stage.states.at(-1), "failed:connection_lost");
  stage.link.start();
  stage.socket.accept();
  assert.equal(stage.socket.sent[0].type, "session.resume");
});

test("a server that was never there is reported after three attempts", () => {
  const stage = talk();
  stage.link.start();
  for (let i = 0; i < 3; i += 1) {
    stage.socket.close(1006);
    stage.place.sleep(5_000);
  }
  assert.equal(FakeSocket.all.length, 3);
  assert.equal(stage.states.at(-1), "failed:no_server");
});

test("a server that loads its model is waited for, at the start and after a drop", async () => {
  for (const make of [talk, opened]) {
    const stage = make();
    stage.place.reason = "loading";
    stage.link.start();
    for (let i = 0; i < 40; i += 1) {
      stage.socket.close(1006);
      await new Promise(setImmediate);
      if (i > 0) assert.equal(stage.link.waitingFor, "loading");
      stage.place.sleep(5_000);
    }
    assert.ok(["connecting", "reconnecting"].includes(stage.link.state), "after 200 s");
    stage.socket.accept();
    stage.socket.say({ type: "session.created", session: { id: "s1" }, resume_token: "t1" });
    assert.equal(stage.link.state, "open");
    assert.equal(stage.link.waitingFor, null);
  }
});

test("a server that loads for ever is given up after five minutes", async () => {
  const stage = talk();
  stage.place.reason = "loading";
  stage.link.start();
  for (let i = 0; i < 70 && stage.link.state === "connecting"; i += 1) {
    stage.socket.close(1006);
    await new Promise(setImmediate);
    stage.place.sleep(5_000);
  }
  assert.equal(stage.states.at(-1), "failed:no_server");
  assert.ok(stage.place.now() > 300_000 && stage.place.now() < 320_000);
});

test("a full server ends it with its code", () => {
  const stage = talk();
  stage.link.start();
  stage.socket.accept();
  stage.socket.say({ type: "error", error: { code: "resource_exhausted", message: "full" } });
  stage.socket.close(1013);
  assert.equal(stage.states.at(-1), "failed:resource_exhausted");
});

test("a session that cannot be resumed makes place for a new one", () => {
  const stage = opened();
  stage.socket.close(1006);
  stage.place.sleep(250);
  stage.socket.accept();
  stage.socket.say({ type: "error", error: { code: "session_resume_expired", message: "" } });
  stage.socket.close(1000);
  stage.socket.accept();
  assert.equal(stage.socket.sent[0].type, "session.update");
  stage.socket.say({ type: "session.created", session: { id: "s2" }, resume_token: "u1" });
  assert.ok(stage.events.includes("link.restarted"));
  stage.socket.say({ type: "z", server_event_seq: 1 });
  assert.ok(stage.events.includes("z"));
});

test("a resume that is refused for now is tried again with the same token", () => {
  const stage = opened();
  stage.socket.close(1006);
  for (const code of ["session_resume_conflict", "shutdown"]) {
    stage.place.sleep(1_000);
    stage.socket.accept();
    stage.socket.say({ type: "error", error: { code, message: "" } });
    stage.socket.close(1012);
  }
  stage.place.sleep(2_000);
  stage.socket.accept();
  assert.equal(stage.socket.sent[0].resume_token, "t1");
});

test("another window took it: no reconnection", () => {
  const stage = opened();
  stage.socket.say({ type: "session.replaced", session_id: "s1", attachment_generation: 1 });
  stage.place.sleep(60_000);
  assert.equal(FakeSocket.all.length, 1);
  assert.equal(stage.states.at(-1), "replaced:replaced");
});

test("a socket that only looks open is given up", () => {
  const stage = opened();
  stage.place.sleep(12_000);
  assert.ok(stage.socket.types.includes("session.heartbeat"));
  stage.socket.say({ type: "session.heartbeat_ack" });
  stage.place.sleep(10_000);
  assert.equal(stage.link.state, "open");
  stage.place.sleep(12_000);
  assert.equal(stage.link.state, "reconnecting");
});

test("a socket that does not drain is given up", () => {
  const stage = opened();
  stage.socket.bufferedAmount = 5 * 1024 * 1024;
  stage.link.send(append, 100);
  assert.equal(stage.link.state, "reconnecting");
});

test("stop says goodbye and forgets the session", () => {
  const stage = opened();
  const { socket } = stage;
  stage.link.stop();
  assert.equal(socket.types.at(-1), "session.close");
  assert.equal(stage.states.at(-1), "idle:stopped");
  stage.link.start();
  stage.socket.accept();
  assert.equal(stage.socket.sent[0].type, "session.update");
});

test("what is not JSON is left aside", () => {
  const stage = opened();
  stage.socket.onmessage({ data: "{" });
  assert.equal(stage.link.state, "open");
});
