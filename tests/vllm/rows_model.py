"""A model that hosts lanes on vLLM and reads what is typed as embeddings: a row for each byte. It answers in token ids. The
turns NAN and WIDE stand for what an encoder of sound might give when it is ill."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from core.ports import runtime as port
from gpu_runtime.engines.port import Embeddings, LaneEngine, LaneError, Rows, Said, Tokens, Unit
from gpu_runtime.engines.vllm_options import VllmOptions, quiet
from gpu_runtime.models.cascade.lane_chat import LoopThread
from gpu_runtime.plugin import Emit, Progress

WIDTH = 256
"""Of tiny-llama."""

ROWS = np.random.default_rng(7).standard_normal((256, WIDTH)).astype(np.float32)
ANSWER_TOKENS = 48


class RowsModel:
    """See Model."""

    capabilities = port.Capabilities(model="rows", unit_ms=1_000, voices=("nobody",))

    def __init__(self, folder: str, emit: Emit) -> None:
        self._emit = emit
        self._loop = LoopThread()
        self._lanes = self._loop.run(start(folder))
        self._open: set[str] = set()

    def handle(self, message: port.ToRuntime) -> None:
        """See Model."""
        match message:
            case port.Respond():
                self._loop.start(self._answer(message))
            case port.CloseSession():
                self._loop.start(self._lanes.close(message.session))

    def statistics(self) -> port.ModelStatistics:
        """See Model."""
        return port.ModelStatistics()

    def close(self) -> None:
        """See Model."""
        self._loop.run(self._lanes.shutdown())
        self._loop.close()

    async def _answer(self, asked: port.Respond) -> None:
        name, rate = asked.session, self.capabilities.output_rate
        answer = (name, asked.epoch, asked.response_id)
        try:
            if name not in self._open:
                await self._lanes.open(name, (Tokens((1, 2, 3)),))
                self._open.add(name)
            unit = Unit((Embeddings(rows(asked.history[-1].text or "")),), ANSWER_TOKENS)
            number = 0
            async for fed in self._lanes.feed(name, unit):
                if isinstance(fed, Said):
                    text = "".join(f"{token} " for token in fed.ids)
                    self._emit(port.Produced(*answer, number, "speak", text, b"", rate, ()))
                    number += 1
        except LaneError as error:
            self._emit(port.LaneFailed(*answer, error.code, str(error)))
        else:
            self._emit(port.LaneEnded(*answer, "completed"))


def rows(text: str) -> Rows:
    """As an encoder would give them."""
    if text == "NAN":
        return np.full((3, WIDTH), np.nan, np.float32)
    if text == "WIDE":
        return np.zeros((3, 2 * WIDTH), np.float32)
    return np.ascontiguousarray(ROWS[list(text.encode())])


async def start(folder: str) -> LaneEngine:
    """In the loop that it will live in."""
    quiet()
    from gpu_runtime.engines.streamed import StreamedLanes
    from gpu_runtime.engines.vllm_requests import VllmRequests

    options = VllmOptions(folder, lane_tokens_max=1_024, requests_max=4, kv_mib=16, dtype="float32", embeddings=True)
    return StreamedLanes(VllmRequests.start(options))


def load(settings: Mapping[str, Any], emit: Emit, progress: Progress) -> RowsModel:
    """See Loader."""
    model = RowsModel(str(settings["folder"]), emit)
    progress("vLLM", 1.0)
    return model
