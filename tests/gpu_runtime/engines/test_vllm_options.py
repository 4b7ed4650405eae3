"""How vLLM is started, without vLLM."""

from __future__ import annotations

import pytest

from gpu_runtime.engines.vllm_options import VllmOptions


@pytest.mark.parametrize("rewinds", [False, True])
def test_a_known_version_gets_our_scheduler_whether_or_not_requests_go_back(rewinds: bool) -> None:
    """Without it nobody sees to logits that are no numbers."""
    options = VllmOptions("folder", rewinds=rewinds)
    assert options.engine_arguments(True, "0.32.0")["scheduler_cls"].endswith(".LaneScheduler")
    assert options.engine_arguments(False, "0.26.1")["scheduler_cls"].endswith(".AsyncLaneScheduler")
    assert options.can_rewind("0.32.0") is rewinds


def test_an_unknown_version_keeps_its_own_scheduler() -> None:
    options = VllmOptions("folder")
    assert "scheduler_cls" not in options.engine_arguments(True, "0.99.0")
    assert not options.can_rewind("0.99.0")
