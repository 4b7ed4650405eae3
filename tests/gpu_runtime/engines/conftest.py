"""vLLM for the tests that run over it: one engine for all of them, since it takes half a minute to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny Llama of random weights."""
    from gpu_runtime.engines.vllm_random import write_model

    folder = tmp_path_factory.mktemp("tiny-llama")
    write_model("tiny-llama", folder)
    return folder


@pytest.fixture(scope="session")
def vllm_bench(tiny_model: Path) -> Iterator[Any]:
    """A bench over real vLLM (stories.Bench)."""
    from tests.gpu_runtime.engines.vllm_bench import VllmBench

    bench = VllmBench(tiny_model)
    yield bench
    bench.close()
