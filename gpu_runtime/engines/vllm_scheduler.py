"""vLLM's scheduler with two things that lanes need: requests that go back, and logits that are no numbers end one request.

vLLM ends a chunk early, or gives up a part of what a streaming request holds, only by ending the request; the next one then
brings the whole history again: hundreds of embeddings to copy, hash and look up. Here a request goes back in its own place:

* ``CUT + request id`` among the ids to abort stops that request's chunk after the step that is under way;
* a chunk whose ``extra_args`` say ``keep_tokens`` first forgets what the request holds behind that position. Whole blocks are
  given back, so no block that others may share or find in the prefix cache is written again; the rest of the last block
  (fewer tokens than a block has) is computed anew with the chunk.

With VLLM_COMPUTE_NANS_IN_LOGITS the model runner counts the NaNs of each request's logits; here those requests end with an
error in place of a token that means nothing.

Imported by vLLM only, by name (``scheduler_cls``); it relies on the insides of the versions in ``vllm_options.REWINDS``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import FinishReason
from vllm.v1.request import RequestStatus

from gpu_runtime.engines.vllm_options import CUT, KEEP_TOKENS


class _Lanes:
    """To be mixed in before one of vLLM's schedulers."""

    def finish_requests(self, request_ids: str | Iterable[str] | None, finished_status: Any) -> Any:
        """As vLLM's, but those that begin with CUT only end their chunk."""
        if request_ids is not None and not isinstance(request_ids, str):
            ids = list(request_ids)
            for name in ids:
                if name.startswith(CUT):
                    self._cut(name.removeprefix(CUT))
            request_ids = [name for name in ids if not name.startswith(CUT)]
        return super().finish_requests(request_ids, finished_status)  # type: ignore[misc]

    def _cut(self, name: str) -> None:
        request = self.requests.get(name)  # type: ignore[attr-defined]
        if request is not None and request.status != RequestStatus.WAITING_FOR_STREAMING_REQ:
            request.max_tokens = 0  # so the next token is the last; the next chunk brings its own limit

    def _update_request_as_session(self, session: Any, update: Any) -> None:
        keep_tokens = (update.sampling_params.extra_args or {}).get(KEEP_TOKENS)
        if keep_tokens is None or keep_tokens >= session.num_computed_tokens:
            super()._update_request_as_session(session, update)  # type: ignore[misc]
            return
        computed = self._rewind(session, keep_tokens)
        super()._update_request_as_session(session, update)  # type: ignore[misc]
        session.num_computed_tokens = computed

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
        """As vLLM's; requests whose logits were no numbers end with an error."""
        counts = model_runner_output.num_nans_in_logits or {}
        ill = {name for name, count in counts.items() if count}
        by_client = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        if not ill:
            return by_client
        for outputs in by_client.values():
            for output in outputs.outputs:
                if output.request_id in ill:
                    output.new_token_ids = []
                    output.finish_reason = FinishReason.ERROR
        super().finish_requests(ill, RequestStatus.FINISHED_ERROR)  # type: ignore[misc]
        return by_client


class LaneScheduler(_Lanes, Scheduler):  # type: ignore[misc]
    """Where a step is over before the next is scheduled, as on a CPU."""


class AsyncLaneScheduler(_Lanes, AsyncScheduler):  # type: ignore[misc]
    """Where the next step is scheduled while one runs, as on a GPU."""
