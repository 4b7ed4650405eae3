"""What a worker tells of its model's work, beside what sessions hear."""

from __future__ import annotations

import pytest

from core.ports.runtime import ModelStatistics, RuntimeReady
from gpu_runtime.host import open_worker
from tests.gpu_runtime.stories import Caller
from tests.gpu_runtime.test_worker_process import QUICK, WATCHFUL, until

pytestmark = [pytest.mark.crash, pytest.mark.realtime]


async def test_a_worker_tells_its_models_figures_with_each_sign_of_life() -> None:
    async with open_worker("scripted", QUICK, options=WATCHFUL) as runtime:
        caller = Caller(runtime)
        caller.open()
        caller.ask("units=3")
        await caller.answered()

        def told() -> bool:
            model = runtime.statistics().model
            return model is not None and model.units_done == 3

        await until(told)
        model = runtime.statistics().model
        assert model is not None
        assert (model.lanes_open, model.units_running, model.units_waiting) == (1, 0, 0)
        runtime.kill_worker()
        await caller.wait_for(RuntimeReady)
        assert (runtime.statistics().model or ModelStatistics()).units_done == 0, "figures of a dead worker"
