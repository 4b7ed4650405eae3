"""Embeddings as an engine takes them. Needs torch, and nothing of vLLM."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import torch

from gpu_runtime.engines.port import Rows

NARROWED_AT_ONCE = 16_384
"""Numbers. Torch splits the conversion of more than twice as many over all processors, and their threads then spin while they
wait for more: on an H200 machine with 128 sessions that took eleven of sixteen processors, and units took twice as long."""


def narrowed(rows: Rows, dtype: torch.dtype) -> torch.Tensor:
    """``rows`` in the model's type, rounded as torch rounds, by this thread alone."""
    given = torch.from_numpy(np.ascontiguousarray(rows)).view(-1)
    made = torch.empty(rows.shape, dtype=dtype)
    for one, other in zip(made.view(-1).split(NARROWED_AT_ONCE), given.split(NARROWED_AT_ONCE), strict=True):
        one.copy_(other)
    return made


def digest(rows: torch.Tensor) -> str:
    """What rows are known by in the prefix cache: the same for the same numbers, as the model gets them."""
    return blake2b(rows.view(torch.uint8).numpy().data, digest_size=16).hexdigest()
