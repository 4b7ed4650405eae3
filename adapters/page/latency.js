// Measures what a listener waits for: from the last loud moment of their own speech to the first sample of the answer.
//
// The end of speech is read from the microphone's own levels and not from the server's events, so that the detector's
// hang-over, which the user waits for as well, is part of the figure.

const KEEP_MS = 15_000;
const LOUD_FLOOR = 0.006;
const LOUD_SHARE = 0.12;

export class LatencyMeter {
  constructor() {
    this.levels = [];
    this.startedMs = null;
    this.endedMs = null;
  }

  /** One level (RMS in 0..1) of the microphone that ends at ``nowMs``. */
  level(nowMs, rms) {
    this.levels.push({ nowMs, rms });
    const oldest = nowMs - KEEP_MS;
    if (this.levels[0].nowMs < oldest) this.levels = this.levels.filter((entry) => entry.nowMs >= oldest);
  }

  speechStarted(nowMs) {
    this.startedMs = nowMs;
    this.endedMs = null;
  }

  /** The detector says that the speech is over; finds the last loud moment before. */
  speechStopped(nowMs) {
    const from = (this.startedMs ?? nowMs) - 500;
    const spoken = this.levels.filter((entry) => entry.nowMs >= from && entry.nowMs <= nowMs);
    const peak = spoken.reduce((most, entry) => Math.max(most, entry.rms), 0);
    const loud = spoken.filter((entry) => entry.rms >= Math.max(LOUD_FLOOR, peak * LOUD_SHARE));
    this.endedMs = loud.at(-1)?.nowMs ?? nowMs;
  }

  /** A typed message: the wait begins now. */
  asked(nowMs) {
    this.endedMs = nowMs;
  }

  /** The answer's first sample sounds; returns the wait in ms once per question, else null. */
  answered(nowMs) {
    const waited = this.endedMs === null ? null : nowMs - this.endedMs;
    this.endedMs = null;
    return waited !== null && waited >= 0 ? waited : null;
  }
}

const DRIFT_MS_MAX = 1_000;

/**
 * Turns positions in a stream of audio into times on the page's clock. Reports come late by a varying amount, never
 * early: the earliest one is nearest to the truth, until the stream really pauses.
 */
export class SteadyClock {
  constructor() {
    this.offsetMs = null;
  }

  /** The time at which position ``mediaMs``, reported at ``nowMs``, was really reached. */
  at(mediaMs, nowMs) {
    const offsetMs = nowMs - mediaMs;
    const late = this.offsetMs === null ? Infinity : offsetMs - this.offsetMs;
    if (late < 0 || late > DRIFT_MS_MAX) this.offsetMs = offsetMs;
    return mediaMs + this.offsetMs;
  }
}
