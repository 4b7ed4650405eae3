"""Real vLLM as an engine under test. Imported only where vllm is installed."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from gpu_runtime.engines.port import Part, Rows, Window
from gpu_runtime.engines.requests import Sampling
from gpu_runtime.engines.streamed import StreamedLanes
from gpu_runtime.engines.vllm_options import VllmOptions, quiet

STORY_S = 120.0


def options(model: Path) -> VllmOptions:
    return VllmOptions(
        model=str(model),
        lane_tokens_max=1_024,
        requests_max=12,
        kv_mib=16,
        dtype="float32",  # rounding must not decide which token is the likeliest
        embeddings=True,
    )


class VllmBench:
    """See stories.Bench."""

    vocabulary = 2_000
    poison = 2_040
    """A token whose embedding is no number (conftest)."""

    def __init__(self, model: Path) -> None:
        quiet()
        from gpu_runtime.engines.vllm_requests import VllmRequests

        self._loop = asyncio.new_event_loop()
        self._serial = itertools.count()
        with safe_open(model / "model.safetensors", "pt") as weights:
            self._embedding = weights.get_tensor("model.embed_tokens.weight").float().numpy()

        async def start() -> VllmRequests:
            return VllmRequests.start(options(model))

        self.engine = self._loop.run_until_complete(start())
        # What the lanes may use is less than there is: one-shot requests, to compare with, need a place beside them.
        self.engine.narrow(requests_max=8, kv_tokens=self.engine.limits.kv_tokens * 5 // 8)

    def run(self, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._loop.run_until_complete(asyncio.wait_for(story(), STORY_S))

    def lanes(self, window: Window | None = None) -> StreamedLanes:
        return StreamedLanes(self.engine, window)

    async def one_shot(self, parts: Sequence[Part], sampling: Sampling) -> list[int]:
        said: list[int] = []
        async for piece in self.engine.one_shot(parts, sampling, f"one-shot-{next(self._serial)}"):
            said.extend(piece.ids)
        return said

    def rows(self, ids: Sequence[int]) -> Rows:
        return np.ascontiguousarray(self._embedding[list(ids)], dtype=np.float32)

    async def kill(self) -> None:
        for pid in children(os.getpid()):
            os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        self._loop.run_until_complete(self.engine.shutdown())
        self._loop.close()


def children(pid: int) -> list[int]:
    """Processes that ``pid`` started."""
    return [int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()]
