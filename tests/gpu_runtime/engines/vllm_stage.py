"""One of vLLM's own schedulers, with a stand-in for the model."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

BLOCK = 32
BLOCKS = 64


class Stage:
    """A scheduler, and a model that says 1000, 1001 ... ``ahead``: the next step is scheduled while one runs. ``kind``: not
    the lanes' own."""

    def __init__(self, folder: Path, ahead: bool, kind: Any = None) -> None:
        import torch
        from vllm.engine.arg_utils import EngineArgs
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.structured_output import StructuredOutputManager

        from gpu_runtime.engines.vllm_options import VllmOptions
        from gpu_runtime.engines.vllm_scheduler import AsyncLaneScheduler, LaneScheduler

        arguments = VllmOptions(str(folder), lane_tokens_max=1_024, dtype="float32").engine_arguments(True)
        config = EngineArgs(**arguments, async_scheduling=ahead).create_engine_config()
        config.cache_config.num_gpu_blocks = BLOCKS
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=64, dtype=torch.float32)
        kv = KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(BLOCK, sha256)
        self.ahead = ahead
        scheduler: Any = kind or (AsyncLaneScheduler if ahead else LaneScheduler)
        self.scheduler: Any = scheduler(
            vllm_config=config,
            kv_cache_config=kv,
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
            log_stats=False,
        )
        self.free = self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        self._running: list[tuple[Any, set[str]]] = []
        """Steps, and the requests whose prompt is not whole with them."""
        self.scheduled: list[dict[str, int]] = []
        """Tokens that each step computes, by request."""
        self._pushed: Counter[str] = Counter()
        self._next = 1_000

    def push(self, ids: list[int], new: int, keep_tokens: int | None = None, name: str = "lane") -> None:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        self._pushed[name] += 1
        extra = {"chunk": self._pushed[name], **({} if keep_tokens is None else {"keep_tokens": keep_tokens})}
        self.scheduler.add_request(
            Request(
                request_id=name,
                prompt_token_ids=ids,
                sampling_params=SamplingParams(max_tokens=new, ignore_eos=True, extra_args=extra),
                pooling_params=None,
                block_hasher=self._hasher,
                resumable=True,
            )
        )

    def step(self, nans: dict[str, int] | None = None) -> list[Any]:
        """Schedule, and hear of the oldest step that runs. What is told to the outside."""
        scheduled = self.scheduler.schedule()
        if scheduled.total_num_scheduled_tokens:
            self._running.append((scheduled, self.begin(scheduled)))
        if not self._running or (self.ahead and len(self._running) < 2 and scheduled.total_num_scheduled_tokens):
            return []
        over, unfinished = self._running.pop(0)
        output = self.end(over, unfinished, nans)
        told = self.scheduler.update_from_output(over, output)
        return [output for outputs in told.values() for output in outputs.outputs]

    def begin(self, scheduled: Any) -> set[str]:
        """A step runs; the requests whose prompt is not whole with it."""
        self.scheduled.append(dict(scheduled.num_scheduled_tokens))
        return {r.request_id for r in self.scheduler.requests.values() if r.num_computed_tokens < r.num_tokens}

    def end(self, scheduled: Any, unfinished: set[str], nans: dict[str, int] | None = None) -> Any:
        """What the model says in it."""
        from vllm.v1.outputs import ModelRunnerOutput

        names = list(scheduled.num_scheduled_tokens)
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: number for number, name in enumerate(names)},
            sampled_token_ids=[[] if name in unfinished else [self._said()] for name in names],
            num_nans_in_logits=nans,
        )

    def cut(self, number: int) -> None:
        from vllm.v1.request import RequestStatus

        from gpu_runtime.engines.vllm_options import cut_id

        self.scheduler.finish_requests([cut_id("lane", number)], RequestStatus.FINISHED_ABORTED)

    def _said(self) -> int:
        self._next += 1
        return self._next

    def finish(self, limit: int = 40) -> list[int]:
        """Until the chunk is over; what was said."""
        said: list[int] = []
        for _ in range(limit):
            for output in self.step():
                said += output.new_token_ids
                if output.finish_reason is not None:
                    for _ in range(3):
                        assert not self.step(), "something was said after the end"
                    return said
        raise AssertionError("the chunk does not end")

    @property
    def lane(self) -> Any:
        return self.scheduler.requests["lane"]

    @property
    def blocks(self) -> list[int]:
        return list(self.scheduler.kv_cache_manager.get_block_ids("lane")[0])
