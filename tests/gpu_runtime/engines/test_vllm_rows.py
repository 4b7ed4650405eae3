"""Embeddings in the model's type."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.limit(wall_s=60)]


@pytest.mark.parametrize("shape", [(1, 4), (10, 4_096), (7, 5_003)])
@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32"])
def test_rows_are_rounded_as_torch_rounds_them(shape: tuple[int, int], name: str) -> None:
    import torch

    from gpu_runtime.engines.vllm_rows import digest, narrowed

    rows = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    dtype = getattr(torch, name)
    made = narrowed(rows, dtype)
    assert torch.equal(made, torch.from_numpy(rows).to(dtype))
    assert digest(made) == digest(narrowed(rows.copy(), dtype))
    rows[-1, -1] += 1
    assert digest(made) != digest(narrowed(rows, dtype))


def test_no_other_thread_has_a_share_in_it() -> None:
    program = """if True:
        import os
        import numpy, torch
        from gpu_runtime.engines.vllm_rows import narrowed
        torch.set_num_threads(4)
        rows = numpy.ones((10, 4_096), numpy.float32)
        before = len(os.listdir("/proc/self/task"))
        narrowed(rows, torch.bfloat16)
        alone = len(os.listdir("/proc/self/task"))
        torch.from_numpy(rows).to(torch.bfloat16)
        print(alone - before, len(os.listdir("/proc/self/task")) > alone)
    """
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert ran.stdout.split() == ["0", "True"], "the conversion, and that this notices one that is shared"
