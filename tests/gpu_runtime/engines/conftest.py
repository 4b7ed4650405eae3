"""vLLM for the tests that run over it: one engine for all of them, since it takes half a minute to start."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gpu_runtime.engines.benches import FakeBench
from tests.gpu_runtime.engines.fake import FakeOptions
from tests.gpu_runtime.engines.stories import Bench

collect_ignore_glob = [] if importlib.util.find_spec("vllm") is not None else ["test_vllm_*"]

BENCHES: list[Any] = ["fake", "fake that rewinds"]
if importlib.util.find_spec("vllm") is not None:
    BENCHES.append(pytest.param("vllm", marks=[pytest.mark.vllm, pytest.mark.limit(wall_s=180)]))


@pytest.fixture(params=BENCHES)
def bench(request: pytest.FixtureRequest) -> Bench:
    match request.param:
        case "fake":
            return FakeBench()
        case "fake that rewinds":
            return FakeBench(FakeOptions(rewinds=True))
        case _:
            bench: Bench = request.getfixturevalue("vllm_bench")
            return bench


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny Llama of random weights, in which the token VllmBench.poison is no number."""
    import torch
    from safetensors.torch import load_file, save_file

    from gpu_runtime.engines.vllm_random import write_model
    from tests.gpu_runtime.engines.vllm_bench import VllmBench

    folder = tmp_path_factory.mktemp("tiny-llama")
    write_model("tiny-llama", folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][VllmBench.poison] = torch.nan
    weights["lm_head.weight"][VllmBench.poison] = 0.0  # the model itself never says it
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="session")
def vllm_bench(tiny_model: Path) -> Iterator[Any]:
    """A bench over real vLLM (stories.Bench)."""
    from tests.gpu_runtime.engines.vllm_bench import VllmBench

    bench = VllmBench(tiny_model)
    yield bench
    bench.close()
