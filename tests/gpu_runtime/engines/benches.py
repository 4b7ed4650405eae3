"""The engines under test."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from gpu_runtime.engines.port import Part, Rows, Tokens, Window
from gpu_runtime.engines.requests import Sampling
from gpu_runtime.engines.streamed import StreamedLanes
from tests.gpu_runtime.engines import virtual_loop
from tests.gpu_runtime.engines.fake import POISON, VOCABULARY, FakeOptions, FakeRequests, one_shot, rows_for


class FakeBench:
    """The fake, under a clock that jumps."""

    vocabulary = VOCABULARY
    poison = POISON

    def __init__(self, options: FakeOptions | None = None) -> None:
        self._options = options
        self.engine: FakeRequests

    def run(self, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def whole() -> None:
            self.engine = FakeRequests(self._options)
            await story()

        virtual_loop.run(whole())

    def lanes(self, window: Window | None = None) -> StreamedLanes:
        return StreamedLanes(self.engine, window)

    async def one_shot(self, parts: Sequence[Part], sampling: Sampling) -> list[int]:
        history = [
            token
            for part in parts
            for token in (part.ids if isinstance(part, Tokens) else (int(row[0]) for row in part.rows))
        ]
        return one_shot(history, sampling.max_new_tokens, sampling.stop_tokens)

    def rows(self, ids: Sequence[int]) -> Rows:
        return rows_for(ids)

    async def kill(self) -> None:
        self.engine.die("killed")
