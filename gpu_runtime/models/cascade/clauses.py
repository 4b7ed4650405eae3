"""A stream of text into pieces worth speaking: the first as early as it can be, the later ones whole.

The pieces joined together are the text, to the character.
"""

from __future__ import annotations

import re

FIRST_CLAUSE_WORDS = 3
"""A comma ends the first piece only behind so many words: shorter ones sound clipped."""

LEFT_OVER_WORDS = 2
"""Words that must have begun behind a first piece that no punctuation ends: a sentence's last word alone sounds odd."""

PIECE_WORDS_MAX = 24
"""A sentence that is longer is spoken in parts, so that synthesis stays short enough to cut."""

SECOND_PIECE_WORDS_MAX = 12
"""The first piece is short, so little time is left to make the second: a longer one came late, and was heard as a hole."""

CLAUSE_WORDS_MIN = 8
"""... but not in parts shorter than this, where it has commas to part at."""

SENTENCE_END = re.compile(r"""[.!?…]+["')\]]*(?=\s)|\n+(?=\s*\S)""")
CLAUSE_END = re.compile(r"[,;:](?=\s)|\s[-–—](?=\s)")
WORD = re.compile(r"\S+")
ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|e\.g|i\.e|a\.m|p\.m|U\.S|No|approx)\.$"
)
LIST_NUMBER = re.compile(r"(?:^|\s)\d{1,2}\.$")


class ClauseSplitter:
    """``push`` text as it comes, ``finish`` at its end; both give the pieces that are complete."""

    def __init__(self, first_piece_words: int) -> None:
        self._first_piece_words = first_piece_words
        self._text = ""
        self._first = True
        self._pieces = 0

    def push(self, text: str) -> list[str]:
        """More text; what can be spoken now."""
        self._text += text
        if self._first:
            self._text = self._text.lstrip()
        pieces: list[str] = []
        while (cut := self._cut()) is not None:
            pieces.append(self._text[:cut])
            self._text = self._text[cut:]
            self._first = False
            self._pieces += 1
        return pieces

    def finish(self, drop_unfinished: bool = False) -> list[str]:
        """The rest. ``drop_unfinished``: the text was broken off, so a last sentence without an end is left out, unless
        it is all there is."""
        pieces = self.push("")
        rest, self._text = self._text.rstrip(), ""
        if drop_unfinished and not self._first and not re.search(r"""[.!?…]["')\]]*$""", rest):
            # parts of that sentence may have been spoken already; the rest of it still is no sentence
            return pieces
        words = [match.end() for match in WORD.finditer(rest)]
        if len(words) > self._words_max:
            # one word too many: the last one could have been growing until now
            cut = words[self._words_max - 1]
            pieces.append(rest[:cut])
            rest = rest[cut:]
        return [*pieces, rest] if rest.strip() else pieces

    def _cut(self) -> int | None:
        """Where the next piece ends."""
        end = self._sentence_end()
        words = [match.end() for match in WORD.finditer(self._text)]
        most = self._words_max
        if end is not None and len(self._text[:end].split()) <= most:
            return end
        # the last word may still be growing
        whole = words[:-1] if words and words[-1] == len(self._text) else words
        if self._first:
            clause = next((at for at in self._clause_ends() if self._words_before(at) >= FIRST_CLAUSE_WORDS), None)
            capped = (
                words[self._first_piece_words - 1] if len(words) >= self._first_piece_words + LEFT_OVER_WORDS else None
            )
            return min((cut for cut in (clause, capped) if cut is not None), default=None)
        if len(whole) <= most:
            return None
        fewest = min(CLAUSE_WORDS_MIN, most // 2)
        fitting = [at for at in self._clause_ends() if fewest <= self._words_before(at) <= most]
        return fitting[-1] if fitting else words[most - 1]

    @property
    def _words_max(self) -> int:
        return SECOND_PIECE_WORDS_MAX if self._pieces == 1 else PIECE_WORDS_MAX

    def _sentence_end(self) -> int | None:
        for match in SENTENCE_END.finditer(self._text):
            before = self._text[: match.end()]
            if match.group().startswith("\n"):
                if before.strip():
                    return match.start()
            elif not ABBREVIATION.search(before) and not LIST_NUMBER.search(before):
                return match.end()
        return None

    def _clause_ends(self) -> list[int]:
        return [match.end() for match in CLAUSE_END.finditer(self._text)]

    def _words_before(self, at: int) -> int:
        return len(self._text[:at].split())
