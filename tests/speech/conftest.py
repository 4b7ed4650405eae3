"""A real server with the real models, in a process of its own, and what is said to it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
START_TIMEOUT_S = 120.0


@attrs.define(eq=False)
class CascadeServer:
    """``duologue serve`` with the cascade on a port that it keeps over restarts."""

    port: int
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/realtime"

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def store_url(self) -> str:
        return f"sqlite:///{self.folder}/log.sqlite3"

    def start(self) -> None:
        command = [sys.executable, "-m", "adapters.command_line.main", "serve", "--port", str(self.port)]
        with (self.folder / "server.log").open("ab") as words:
            self.process = subprocess.Popen(
                [*command, "--store", self.store_url, "--drain-s", "0"],
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                cwd=ROOT,
            )

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        assert self.process is not None
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.1)
        pytest.fail(f"the server did not start: {(self.folder / 'server.log').read_text()[-2_000:]}")

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(timeout=30)


@pytest.fixture(scope="session")
def cascade_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CascadeServer]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    server = CascadeServer(port, tmp_path_factory.mktemp("speech"))
    server.start()
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()
