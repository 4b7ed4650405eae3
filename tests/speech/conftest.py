"""A real server with the real models, in a process of its own, and what is said to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from adapters.bench.own_server import ServerProcess


@pytest.fixture(scope="session")
def cascade_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Ready to talk; a test that kills it starts it again."""
    server = ServerProcess(tmp_path_factory.mktemp("speech"), ("--drain-s", "0"))
    server.start()
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()
