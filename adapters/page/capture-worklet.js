// Captures the microphone as mono pcm16 at 24 kHz in chunks of 100 ms.
//
// The context runs at the device's own rate (Firefox refuses to connect a microphone to a context of another rate), so
// the rate conversion happens here. The file imports nothing: worklets of older browsers cannot.

export const CAPTURE_RATE = 24_000;
export const CHUNK_SAMPLES = 2_400;
export const LEVEL_SAMPLES = 480;

const ZERO_CROSSINGS = 16;
const PHASES = 512;
// The passband ends a little below the Nyquist frequency: the rest is the filter's slope.
const PASSBAND = 0.92;

/** Converts a stream of samples from one rate to another with a windowed sinc; keeps its state between calls. */
export class Resampler {
  constructor(inputRate, outputRate) {
    this.step = inputRate / outputRate;
    this.cutoff = Math.min(1, 1 / this.step) * PASSBAND;
    this.half = Math.ceil(ZERO_CROSSINGS / this.cutoff);
    this.table = sincTable(this.half, this.cutoff);
    this.pending = new Float32Array(this.half);
    this.position = this.half;
  }

  /** Float32Array at the input rate -> Float32Array at the output rate; any length, also empty. */
  push(samples) {
    const pending = new Float32Array(this.pending.length + samples.length);
    pending.set(this.pending);
    pending.set(samples, this.pending.length);
    const count = Math.max(0, Math.ceil((pending.length - this.half - this.position) / this.step));
    const out = new Float32Array(count);
    for (let n = 0; n < count; n += 1) {
      out[n] = this.#at(pending, this.position + n * this.step);
    }
    const next = this.position + count * this.step;
    const used = Math.max(0, Math.floor(next) - this.half);
    this.pending = pending.slice(used);
    this.position = next - used;
    return out;
  }

  #at(pending, center) {
    const first = Math.max(0, Math.ceil(center - this.half));
    const last = Math.min(pending.length - 1, Math.floor(center + this.half));
    let sum = 0;
    for (let k = first; k <= last; k += 1) {
      sum += pending[k] * this.table[Math.round(Math.abs(center - k) * PHASES)];
    }
    return sum;
  }
}

function sincTable(half, cutoff) {
  const table = new Float32Array(half * PHASES + 2);
  for (let i = 0; i < table.length; i += 1) {
    const x = i / PHASES;
    if (x >= half) break;
    const angle = Math.PI * x * cutoff;
    const sinc = x === 0 ? 1 : Math.sin(angle) / angle;
    const turn = (Math.PI * x) / half;
    const blackman = 0.42 + 0.5 * Math.cos(turn) + 0.08 * Math.cos(2 * turn);
    table[i] = cutoff * sinc * blackman;
  }
  return table;
}

/** Cuts 24 kHz samples into chunks: {pcm: Int16Array(2400), levels: five RMS values of 20 ms each}. */
export class Chunker {
  constructor() {
    this.samples = new Float32Array(CHUNK_SAMPLES);
    this.filled = 0;
  }

  push(samples) {
    const chunks = [];
    let taken = 0;
    while (taken < samples.length) {
      const count = Math.min(CHUNK_SAMPLES - this.filled, samples.length - taken);
      this.samples.set(samples.subarray(taken, taken + count), this.filled);
      this.filled += count;
      taken += count;
      if (this.filled === CHUNK_SAMPLES) {
        chunks.push({ pcm: toPcm16(this.samples), levels: levelsOf(this.samples) });
        this.filled = 0;
      }
    }
    return chunks;
  }
}

function toPcm16(samples) {
  const pcm = new Int16Array(samples.length);
  for (let i = 0; i < samples.length; i += 1) {
    pcm[i] = Math.round(Math.max(-1, Math.min(1, samples[i])) * 32_767);
  }
  return pcm;
}

function levelsOf(samples) {
  const levels = [];
  for (let start = 0; start < samples.length; start += LEVEL_SAMPLES) {
    let sum = 0;
    for (let i = start; i < start + LEVEL_SAMPLES; i += 1) sum += samples[i] * samples[i];
    levels.push(Math.sqrt(sum / LEVEL_SAMPLES));
  }
  return levels;
}

/** Mixes the channels of one render quantum to mono; silence where the device gives nothing. */
export function mixToMono(channels, frames) {
  if (channels.length === 0) return new Float32Array(frames);
  if (channels.length === 1) return channels[0];
  const mono = new Float32Array(channels[0].length);
  for (const channel of channels) {
    for (let i = 0; i < mono.length; i += 1) mono[i] += channel[i] / channels.length;
  }
  return mono;
}

const Processor = globalThis.AudioWorkletProcessor ?? Object;

class CaptureProcessor extends Processor {
  constructor() {
    super();
    this.running = true;
    this.resampler = new Resampler(globalThis.sampleRate, CAPTURE_RATE);
    this.chunker = new Chunker();
    this.port.onmessage = ({ data }) => {
      if (data.type === "stop") this.running = false;
    };
  }

  process(inputs) {
    const mono = mixToMono(inputs[0], 128);
    for (const chunk of this.chunker.push(this.resampler.push(mono))) {
      this.port.postMessage(chunk, [chunk.pcm.buffer]);
    }
    return this.running;
  }
}

if (typeof globalThis.registerProcessor === "function") {
  globalThis.registerProcessor("duologue-capture", CaptureProcessor);
}
