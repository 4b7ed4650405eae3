"""What is in a lane: its prompt, then units, each with what was decoded for it. Positions count tokens from 0."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise

import attrs

from gpu_runtime.engines.port import Embeddings, Part, Slid, Tokens


@attrs.define
class _Segment:
    """A run of ids, which may grow, or a block of rows, which does not."""

    start: int
    ids: list[int] | None
    block: Embeddings | None

    def __len__(self) -> int:
        if self.ids is not None:
            return len(self.ids)
        assert self.block is not None
        return len(self.block)

    def part(self, start: int, end: int) -> Part:
        """[start, end) of the lane's positions, clipped to this segment."""
        low, high = max(start - self.start, 0), min(end - self.start, len(self))
        if self.ids is not None:
            return Tokens(tuple(self.ids[low:high]))
        assert self.block is not None
        # Whole blocks come back as the object that came in: what an engine keeps beside it (a digest) is not lost.
        return self.block if high - low == len(self.block) else Embeddings(self.block.rows[low:high])


class LaneHistory:
    """Invariants: segments are adjacent and not empty; ``unit_starts`` ascend and lie in [prompt_tokens, tokens]."""

    def __init__(self, prompt: Iterable[Part]) -> None:
        self._segments: list[_Segment] = []
        self.tokens = 0
        self.unit_starts: list[int] = []
        self._extend(prompt)
        self.prompt_tokens = self.tokens

    def begin_unit(self, parts: Sequence[Part]) -> None:
        """A unit comes in."""
        self.unit_starts.append(self.tokens)
        self._extend(parts)

    def say(self, ids: Sequence[int]) -> None:
        """Tokens were decoded."""
        self._extend((Tokens(tuple(ids)),))

    def parts(self, start: int = 0, end: int | None = None) -> list[Part]:
        """[start, end), in order; neighbouring ids are one part."""
        end = self.tokens if end is None else end
        if start >= end:
            return []
        first = bisect_left(self._segments, start + 1, key=lambda segment: segment.start) - 1
        found = []
        for segment in self._segments[max(first, 0) :]:
            if segment.start >= end:
                break
            found.append(segment.part(start, end))
        return found

    def splits(self, tokens: int) -> bool:
        """Whether a cut at ``tokens`` goes through a block of rows."""
        return any(
            segment.block is not None and segment.start < tokens < segment.start + len(segment)
            for segment in reversed(self._segments)
        )

    def truncate(self, tokens: int) -> None:
        """Forget what lies at ``tokens`` and behind. Raises ValueError unless 0 < tokens <= self.tokens."""
        if not 0 < tokens <= self.tokens:
            raise ValueError(f"position {tokens} is outside of a lane of {self.tokens} tokens")
        kept = self.parts(0, tokens)
        self._segments, self.tokens = [], 0
        self._extend(kept)
        self.prompt_tokens = min(self.prompt_tokens, tokens)
        self.unit_starts = [start for start in self.unit_starts if start < tokens]

    def slid(self, keep_tokens: int) -> tuple[LaneHistory, Slid]:
        """A copy of the prompt and the newest whole units that fit into ``keep_tokens`` with it: one unit at least, and
        never more than there are."""
        room = keep_tokens - self.prompt_tokens
        starts = self.unit_starts
        first = next((n for n, start in enumerate(starts) if self.tokens - start <= room), max(len(starts) - 1, 0))
        other = LaneHistory(self.parts(0, self.prompt_tokens))
        for start, end in pairwise([*starts[first:], self.tokens]):
            other.begin_unit(self.parts(start, end))
        return other, Slid(first, self.tokens, other.tokens)

    def append_from(self, other: LaneHistory, start: int) -> None:
        """Add what ``other`` has from its position ``start`` on, which is the beginning of a unit, or its end."""
        starts = [position for position in other.unit_starts if position >= start]
        for position, end in pairwise([*starts, other.tokens]):
            self.begin_unit(other.parts(position, end))

    def _extend(self, parts: Iterable[Part]) -> None:
        for part in parts:
            if not len(part):
                continue
            last = self._segments[-1] if self._segments else None
            if isinstance(part, Tokens):
                if last is not None and last.ids is not None:
                    last.ids.extend(part.ids)
                else:
                    self._segments.append(_Segment(self.tokens, list(part.ids), None))
            else:
                self._segments.append(_Segment(self.tokens, None, part))
            self.tokens += len(part)
