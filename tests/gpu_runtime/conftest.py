"""One Ray cluster for all modules that want one, since it takes some seconds to start. It ends with the last of them: its
processes never sleep quite, and would disturb the tests that come later."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.gpu_runtime.ray_nodes import RayNodes, ray_nodes

_RUNNING = ExitStack()
_NODES: list[RayNodes] = []
_MODULES: set[Path] = set()
"""Those with tests that may want it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _MODULES.update(item.path for item in items if item.get_closest_marker("ray"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        if _NODES and (nextitem is None or nextitem.path not in _MODULES):
            _NODES.clear()
            _RUNNING.close()


@pytest.fixture
def cluster() -> RayNodes:
    """A head and two nodes."""
    if not _NODES:
        _NODES.append(_RUNNING.enter_context(ray_nodes()))
    return _NODES[0]
