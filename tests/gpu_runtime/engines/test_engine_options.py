"""How vLLM is started, in an environment that need not have it."""

from __future__ import annotations

import pytest

from gpu_runtime.engines.streamed import PREFILLS_AT_ONCE, SLIDE_PIECE_TOKENS
from gpu_runtime.engines.vllm_options import VllmOptions, captured


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


def test_a_gpu_gets_graphs_of_steps_that_take_new_input_too() -> None:
    """At random phases nearly every step is one, and without a graph it takes twice as long."""
    arguments = VllmOptions("folder", requests_max=160).engine_arguments(False, "0.26.0")
    assert not arguments["enforce_eager"]
    graphs = arguments["compilation_config"]
    assert graphs["cudagraph_mode"] == "FULL"
    sizes = graphs["cudagraph_capture_sizes"]
    assert sizes == sorted(set(sizes))
    assert 160 in sizes, "all lanes decode"
    assert max(sizes) >= 160 + PREFILLS_AT_ONCE * SLIDE_PIECE_TOKENS, "and slide"


def test_graphs_are_no_larger_than_a_step() -> None:
    for requests_max in (1, 5, 64, 500):
        sizes = captured(requests_max, 512)
        assert sizes[0] == 1
        assert requests_max in sizes
        assert sizes[-1] <= max(512, requests_max)


def test_a_cpu_gets_no_graphs() -> None:
    arguments = VllmOptions("folder").engine_arguments(True, "0.32.0")
    assert arguments["enforce_eager"]
    assert "compilation_config" not in arguments


def test_graphs_can_be_left_out() -> None:
    arguments = VllmOptions("folder", eager=True).engine_arguments(False, "0.26.0")
    assert arguments["enforce_eager"]
    assert "compilation_config" not in arguments
