// Accounts for the server's numbers, so that a cut can be told from a loss.
//
// Numbers strictly increase. A hole is legal when the server announces it (``skipped`` ranges: audio that a cut made
// pointless); a hole that nobody announces is a loss, and is counted.

const HOLES_MAX = 256;

export class SequenceTracker {
  constructor() {
    this.last = 0;
    this.acked = 0;
    this.duplicates = 0;
    this.holes = [];
  }

  /** Takes one event's number; false: it was seen before and must not be applied again. No number: always true. */
  accept(number) {
    if (number === undefined || number === null) return true;
    if (number <= this.last) {
      this.duplicates += 1;
      return false;
    }
    if (number > this.last + 1) this.holes.push([this.last + 1, number - 1]);
    if (this.holes.length > HOLES_MAX) this.holes.splice(0, this.holes.length - HOLES_MAX);
    this.last = number;
    return true;
  }

  /** Takes announced ranges [[from, to], ...], both ends included. */
  announce(ranges) {
    for (const [from, to] of ranges ?? []) {
      this.holes = this.holes.flatMap((hole) => without(hole, from, to));
      // Announced before anything higher came: the stream goes on after the range.
      if (from <= this.last + 1 && to > this.last) this.last = to;
    }
  }

  /** How many numbers are missing without an announcement. */
  get unexplained() {
    return this.holes.reduce((sum, [from, to]) => sum + to - from + 1, 0);
  }

  /** The number to acknowledge now, or null when nothing new came in. */
  takeAck() {
    if (this.last <= this.acked) return null;
    this.acked = this.last;
    return this.last;
  }
}

function without([low, high], from, to) {
  if (to < low || from > high) return [[low, high]];
  const rest = [];
  if (low < from) rest.push([low, from - 1]);
  if (high > to) rest.push([to + 1, high]);
  return rest;
}
