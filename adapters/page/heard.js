// How much of an answer's text was heard, from how much of its audio was played.
//
// A mark says: this many characters have been spoken when this much audio has played. Characters are Unicode code
// points, as the server counts them; JavaScript's string indices are not, hence the detour over arrays.

/** Adds new marks to known ones: sorted by audio_end_ms, never going back in either figure. */
export function mergeMarks(known, added) {
  const merged = [...known];
  for (const mark of added ?? []) {
    const last = merged.at(-1) ?? { text_chars: 0, audio_end_ms: 0 };
    if (mark.audio_end_ms > last.audio_end_ms && mark.text_chars >= last.text_chars) {
      merged.push({ text_chars: mark.text_chars, audio_end_ms: mark.audio_end_ms });
    }
  }
  return merged;
}

/** Code points heard at ``playedMs``, between marks by proportion. Without marks: by proportion of ``totalMs``. */
export function charsAt(marks, playedMs, textChars, totalMs) {
  let before = { text_chars: 0, audio_end_ms: 0 };
  const line = marks.length > 0 ? marks : [{ text_chars: textChars, audio_end_ms: totalMs }];
  for (const mark of line) {
    if (playedMs < mark.audio_end_ms) {
      const share = (playedMs - before.audio_end_ms) / (mark.audio_end_ms - before.audio_end_ms);
      return Math.floor(before.text_chars + share * (mark.text_chars - before.text_chars));
    }
    before = mark;
  }
  return Math.min(before.text_chars, textChars);
}

/** Splits ``text`` after ``chars`` code points, moved back to the end of a whole word and its space: [heard, rest]. */
export function splitAtWord(text, chars) {
  const points = Array.from(text);
  let at = Math.max(0, Math.min(chars, points.length));
  if (at < points.length) {
    while (at > 0 && !isBoundary(points[at - 1], points[at])) at -= 1;
  }
  while (at > 0 && /\s/u.test(points[at] ?? "")) at += 1;
  return [points.slice(0, at).join(""), points.slice(at).join("")];
}

// Inside a word nothing is cut; scripts without spaces may be cut between any two characters.
function isBoundary(left, right) {
  const word = /[\p{L}\p{N}\p{M}'’]/u;
  if (!word.test(left) || !word.test(right)) return true;
  return /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}]/u.test(left + right);
}

/** Number of code points. */
export function countChars(text) {
  return Array.from(text).length;
}

/** Decides when a playback.ack is due: every ``everyMs`` while playing, and always for the last word. */
export class AckPacer {
  constructor(everyMs = 250) {
    this.everyMs = everyMs;
    this.forget();
  }

  /** A progress report; returns played_ms to acknowledge, or null. Never goes back, never repeats itself. */
  progress(responseId, playedMs, nowMs) {
    if (responseId === this.responseId && nowMs - this.ackedAtMs < this.everyMs) return null;
    return this.final(responseId, playedMs, nowMs);
  }

  /** The final figure of a response (it ended, or was cut); null when that figure was acknowledged already. */
  final(responseId, playedMs, nowMs) {
    if (responseId !== this.responseId) {
      this.responseId = responseId;
      this.playedMs = -1;
    }
    const whole = Math.floor(playedMs);
    if (whole <= this.playedMs) return null;
    this.playedMs = whole;
    this.ackedAtMs = nowMs;
    return whole;
  }

  forget() {
    this.responseId = null;
    this.playedMs = -1;
    this.ackedAtMs = -Infinity;
  }
}
