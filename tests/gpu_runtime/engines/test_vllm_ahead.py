"""What it would be worth not to schedule a step ahead for one lane that decodes alone, and what it would cost: why lanes do
not do it (docs/benchmarks/gpu.md, "Barge-in"). vLLM's own loop runs over a stand-in for the device, in virtual time."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from pathlib import Path
from queue import Queue
from statistics import mean
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_runtime.engines.vllm_options import boundary, cut_id
from tests.gpu_runtime.engines.vllm_stage import Stage

pytestmark = [pytest.mark.vllm, pytest.mark.limit(wall_s=600)]

STEP_MS = 5.0
"""As on an H200, about. What the processor does takes no time here."""

PHASES = 20


def scheduler(how: str) -> Any:
    """``ahead``: the lanes' own. The others leave a lane that decodes alone until its step is over: the one says that there
    is nothing to schedule, the other schedules a step of nothing."""
    from vllm.v1.core.sched.output import SchedulerOutput

    from gpu_runtime.engines.vllm_scheduler import AsyncLaneScheduler

    class Waits(AsyncLaneScheduler):
        def is_alone(self) -> bool:
            running = self.running
            return (
                len(running) == 1
                and running[0].num_output_placeholders > 0
                and self.get_num_unfinished_requests() == 1
                and not self.has_finished_requests()
            )

    class SaysNothing(Waits):
        def has_requests(self) -> bool:
            return not self.is_alone() and super().has_requests()

    class StepsOfNothing(Waits):
        def schedule(self, *rest: Any, **named: Any) -> Any:
            return SchedulerOutput.make_empty() if self.is_alone() else super().schedule(*rest, **named)

    return {"ahead": AsyncLaneScheduler, "says nothing": SaysNothing, "steps of nothing": StepsOfNothing}[how]


class Loop:
    """vLLM's loop; this is its executor, too. The device computes one step after another."""

    def __init__(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        from vllm.v1.engine import core

        self.now_ms = 0.0
        self.said: list[tuple[float, int]] = []
        self._stage = stage
        self._free_ms = 0.0
        self._cut_ms: float | None = None
        engine: Any = object.__new__(core.EngineCoreProc)
        self._engine = engine
        engine.scheduler, engine.model_executor = stage.scheduler, self
        engine.batch_queue, engine.batch_queue_size = deque(maxlen=2), 2
        engine.step_fn = engine.step_with_batch_queue
        engine.output_queue, engine.aborts_queue = SimpleNamespace(put_nowait=self._hear), Queue()
        engine.vllm_config, engine.log_stats = stage.scheduler.vllm_config, False
        engine.is_pooling_model = engine.is_mm_encoder_only = engine.is_ec_consumer = False
        engine.check_for_draft_tokens = engine.engines_running = False
        engine._weight_version = None
        monkeypatch.setattr(core, "time", SimpleNamespace(sleep=self._sleep))

    def execute_model(self, scheduled: Any, non_block: bool) -> Future[Any]:
        """See vLLM's Executor."""
        from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT

        self._given = scheduled
        done: Future[Any] = Future()
        done.set_result(None if scheduled.total_num_scheduled_tokens else EMPTY_MODEL_RUNNER_OUTPUT)
        return done

    def sample_tokens(self, grammar: Any, non_block: bool) -> Any:
        """See vLLM's Executor."""
        given, unfinished = self._given, self._stage.begin(self._given)
        self._free_ms = over_ms = max(self._free_ms, self.now_ms) + STEP_MS

        def result() -> Any:
            self.now_ms = max(self.now_ms, over_ms)
            if self._is_due():  # vLLM takes cuts before it looks at what a step gave
                self._engine.aborts_queue.put([cut_id("lane", 1)])
            return self._stage.end(given, unfinished)

        return SimpleNamespace(result=result)

    def cut_and_feed(self, at_ms: float) -> None:
        """The lane's first chunk is cut then, and the next one comes at once."""
        self._cut_ms = at_ms

    def turn(self) -> None:
        """Once round."""
        if self._is_due():
            self._cut_ms = None
            self._engine.abort_requests([cut_id("lane", 1)])
            self._stage.push([7, 8], 4, keep_tokens=54)
        self._engine._process_engine_step()

    def _hear(self, told: tuple[int, Any]) -> None:
        self.said += [(self.now_ms, token) for output in told[1].outputs for token in output.new_token_ids]

    def _is_due(self) -> bool:
        return self._cut_ms is not None and self._cut_ms <= self.now_ms

    def _sleep(self, seconds: float) -> None:
        self.now_ms += seconds * 1e3


def measured(folder: Path, how: str, phase: float, monkeypatch: pytest.MonkeyPatch) -> tuple[float, float, float]:
    """ms to the first token of a unit where nothing runs, from token to token, and from a cut to the next first token."""
    stage = Stage(folder, True, scheduler(how))
    loop = Loop(stage, monkeypatch)
    stage.push(list(range(50)), 200)
    while len(loop.said) < 20:
        loop.turn()
    first_ms = loop.said[0][0]
    token_ms = (loop.said[19][0] - loop.said[9][0]) / 10
    cut_ms = loop.now_ms + phase * token_ms
    loop.cut_and_feed(cut_ms)
    while boundary(2) not in [token for _, token in loop.said]:
        loop.turn()
    again_ms = next(ms for ms, token in loop.said if token == boundary(2))
    return first_ms, token_ms, again_ms - cut_ms


@pytest.mark.parametrize(
    ("how", "token_ms", "cut_ms"),
    [("ahead", 5.0, 12.5), ("says nothing", 6.0, 7.15), ("steps of nothing", 6.0, 7.15)],
)
def test_a_lane_alone_pays_with_each_token_for_what_a_cut_would_save_once(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, how: str, token_ms: float, cut_ms: float
) -> None:
    """vLLM's loop sleeps for a millisecond whenever it has computed nothing and there are requests: here after each token."""
    found = [measured(tiny_model, how, (phase + 0.5) / PHASES, monkeypatch) for phase in range(PHASES)]
    assert {first for first, _, _ in found} == {STEP_MS}
    assert mean(token for _, token, _ in found) == pytest.approx(token_ms)
    assert mean(cut for _, _, cut in found) == pytest.approx(cut_ms, abs=0.01)
