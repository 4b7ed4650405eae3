// A conversation by @openai/agents-realtime, unmodified. It is told where to connect and prints what it saw, one JSON a line.
// Runs from a folder with its own node_modules: see foreign.py.
import { OpenAIRealtimeWebSocket, RealtimeAgent, RealtimeSession, tool } from "@openai/agents-realtime";

const RATE = 24_000;
const [url, story, apiKey = "sk-none"] = process.argv.slice(2);

const report = (step, fields = {}) => console.log(JSON.stringify({ step, ...fields }));
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function samples(ms, value) {
  const pcm = new Int16Array((ms * RATE) / 1000);
  for (let i = 0; i < pcm.length; i++) pcm[i] = value(i);
  return pcm.buffer;
}
const tone = (ms) => samples(ms, (i) => 8000 * Math.sin(i * 0.3));
const silence = (ms) => samples(ms, () => 0);

const transport = new OpenAIRealtimeWebSocket({ url });
const executed = [];
const lookUp = tool({
  name: "look_up",
  description: "Looks something up.",
  parameters: { type: "object", properties: { text: { type: "string" } }, required: ["text"], additionalProperties: true },
  strict: false,
  execute: async (given) => {
    executed.push(given);
    return "it is 42";
  },
});
const tools = story === "callFunction" ? [lookUp] : [];
const agent = new RealtimeAgent({ name: "guide", instructions: "Be kind.", tools });
const session = new RealtimeSession(agent, { transport, model: "gpt-realtime" });

const seen = [];
const waiting = [];
function look() {
  for (const wait of waiting.slice()) {
    const index = seen.findIndex((event, i) => i >= wait.from && event.type === wait.type && wait.test(event));
    if (index >= 0) {
      waiting.splice(waiting.indexOf(wait), 1);
      wait.resolve(seen[index]);
    }
  }
}
let mark = 0;
// The next event of that type after the last `mark`.
const next = (type, test = () => true) =>
  new Promise((resolve) => {
    waiting.push({ type, from: mark, test, resolve });
    look();
  });
const step = () => (mark = seen.length);

let audioBytes = 0;
let interrupted = 0;
const errors = [];
session.on("transport_event", (event) => {
  seen.push(event);
  look();
});
session.on("audio", (event) => (audioBytes += event.data.byteLength));
session.on("audio_interrupted", () => (interrupted += 1));
session.on("error", (event) => errors.push(event.error?.error?.code ?? String(event.error?.message ?? event.error)));

async function say(ms = 400) {
  session.sendAudio(tone(ms));
  session.sendAudio(silence(800));
}

const stories = {
  async answer() {
    for (const turn of [1, 2]) {
      step();
      audioBytes = 0;
      await say();
      const done = await next("response.done");
      report("answered", {
        turn,
        status: done.response.status,
        transcript: done.response.output[0].content[0].transcript,
        audioBytes,
        history: session.history.map((item) => [item.role, item.status]),
      });
    }
    step();
    session.sendMessage("units=3 please");
    await next("response.done");
    report("typed", { deltas: seen.slice(mark).filter((e) => e.type === "response.output_audio.delta").length });
  },
  async interrupt() {
    await say();
    const first = await next("response.output_audio.delta");
    await sleep(300);
    step();
    session.interrupt();
    const done = await next("response.done");
    const truncated = await next("conversation.item.truncated");
    step();
    await sleep(400);
    report("interrupted", {
      status: done.response.status,
      reason: done.response.status_details?.reason,
      audioEndMs: truncated.audio_end_ms,
      sameItem: truncated.item_id === first.item_id,
      kept: session.history.find((item) => item.itemId === first.item_id)?.content[0]?.transcript ?? "",
      told: seen
        .filter((e) => e.item_id === first.item_id && e.type === "response.output_audio_transcript.delta")
        .map((e) => e.delta)
        .join(""),
      late: seen.slice(mark).filter((e) => e.item_id === first.item_id && /delta/.test(e.type)).length,
      interrupted,
    });
    step();
    await say();
    const after = await next("response.output_audio.delta");
    report("again", { otherItem: after.item_id !== first.item_id });
  },
  async speakOver() {
    await say();
    const first = await next("response.output_audio.delta");
    step();
    await say(1_500);
    const done = await next("response.done");
    const truncated = await next("conversation.item.truncated");
    report("spoken over", {
      status: done.response.status,
      reason: done.response.status_details?.reason,
      sameItem: truncated.item_id === first.item_id,
      interrupted,
    });
  },
  async callFunction() {
    await next("session.updated", (e) => e.session.tools?.length === 1);
    step();
    session.sendMessage("call=look_up");
    const first = await next("response.done");
    step();
    const second = await next("response.done", (e) => e.response.id !== first.response.id);
    report("called", {
      executed,
      output: first.response.output.map((item) => item.type),
      transcript: second.response.output[0].content[0].transcript,
      history: session.history.map((item) => [item.type, item.status, item.output ?? null]),
    });
  },
  async nothingToCancel() {
    transport.sendEvent({ type: "response.cancel" });
    await next("error");
    step();
    await say();
    const done = await next("response.done");
    report("lived", { status: done.response.status });
  },
  async configure() {
    report("configured", {
      instructions: (await next("session.updated", (e) => e.session.instructions === "Be kind.")).session.instructions,
    });
  },
};

setTimeout(() => {
  report("timeout", { types: seen.map((event) => event.type).slice(-20) });
  process.exit(3);
}, 60_000).unref();

await session.connect({ apiKey, url });
await next("session.created");
report("connected");
await stories[story]();
session.close();
report("closed", { status: transport.status, errors });
process.exit(0);
