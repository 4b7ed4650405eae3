"""A worker's process once it is reaped."""

from __future__ import annotations

import pytest

from gpu_runtime.host import process as host_process

pytestmark = [pytest.mark.crash, pytest.mark.realtime]


async def test_the_number_of_a_process_that_was_reaped_is_used_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be somebody else's by then, whose process group would be killed."""
    worker = host_process.WorkerProcess.start("scripted")
    worker.kill()
    assert await worker.wait() == "killed by SIGKILL"

    async def somebody_elses(_number: int) -> None:
        pytest.fail("the number was used")

    monkeypatch.setattr(host_process, "_wait_pidfd", somebody_elses)
    monkeypatch.setattr(host_process, "end_group", somebody_elses)
    await worker.close()
    assert await worker.wait() == "killed by SIGKILL"
