"""One Ray cluster for all tests that want one: it takes some seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gpu_runtime.ray_nodes import RayNodes, ray_nodes


@pytest.fixture(scope="session")
def cluster() -> Iterator[RayNodes]:
    """A head and two nodes."""
    with ray_nodes() as nodes:
        yield nodes
