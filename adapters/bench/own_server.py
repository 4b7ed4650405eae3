"""A server in a process of its own, for benchmarks and tests: ``duologue serve`` on a loopback port that it keeps when it is
killed and started again."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import attrs
import trio

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 45.0
LOOK_EVERY_S = 0.05
LAST_WORDS_CHARS = 2_000
PACKAGES = Path(__file__).parents[2]
PROGRAM = (sys.executable, "-m", "adapters.command_line.main")


class ServerDidNotStart(Exception):
    """The message holds the end of the server's own words."""


class Child(Protocol):
    """What is needed of a process, as subprocess.Popen has it."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...


Launch = Callable[[Sequence[str], Path], Child]
"""(arguments of ``duologue``, file for everything that it prints) -> the process that runs it."""


def launch(arguments: Sequence[str], words: Path, program: Sequence[str] = PROGRAM) -> Child:
    """A fresh interpreter that runs the same code as this one."""
    with words.open("ab") as log:
        return subprocess.Popen(
            [*program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": str(PACKAGES)},
            cwd=words.parent,
        )


@attrs.define(eq=False)
class ServerProcess:
    """``duologue serve FLAGS``. ``folder`` holds what it prints (``words``) and, unless ``store_url`` names another store,
    its log. Not started yet; call ``start``, then wait with ``ready`` or ``wait_ready``."""

    folder: Path
    flags: tuple[str, ...] = ()
    store_url: str = attrs.field(default=attrs.Factory(lambda self: f"sqlite:///{self.folder}/log.sqlite3", True))
    words: Path = attrs.field(default=attrs.Factory(lambda self: self.folder / "server.log", True))
    port: int = attrs.field(factory=lambda: free_port())
    launch: Launch = launch
    process: Child | None = None

    @property
    def url(self) -> str:
        """Where the project's client connects."""
        return f"ws://127.0.0.1:{self.port}/v1/realtime"

    @property
    def http_url(self) -> str:
        """Where a browser looks; a page may use the microphone there."""
        return f"http://localhost:{self.port}"

    @property
    def alive(self) -> bool:
        """Whether the process runs (or is stopped by a signal)."""
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the last start."""
        assert self.process is not None
        return self.process.pid

    @property
    def last_words(self) -> str:
        """The end of what it printed."""
        return self.words.read_text(errors="replace")[-LAST_WORDS_CHARS:]

    def start(self) -> None:
        """Start it; it is not ready yet."""
        arguments = ("serve", "--port", str(self.port), "--store", self.store_url, *self.flags)
        self.process = self.launch(arguments, self.words)

    def is_ready(self) -> bool:
        """Whether ``/readyz`` says so. Blocks, for 5 s at most."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Block until it takes sessions. Raises ServerDidNotStart."""
        deadline = time.monotonic() + timeout_s
        while self.alive and time.monotonic() < deadline:
            if self.is_ready():
                return
            time.sleep(LOOK_EVERY_S)
        raise ServerDidNotStart(self.last_words)

    async def ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """The same in trio."""
        with trio.move_on_after(timeout_s):
            while self.alive:
                if await trio.to_thread.run_sync(self.is_ready):
                    return
                await trio.sleep(LOOK_EVERY_S)
        raise ServerDidNotStart(self.last_words)

    def signal(self, number: int) -> None:
        """Send a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """kill -9, and wait for the end."""
        if self.alive:
            self.signal(signal.SIGKILL)
        assert self.process is not None
        self.process.wait()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End it in order, by force after ``timeout_s``. Blocks; stopping twice is stopping once."""
        if not self.alive:
            return
        assert self.process is not None
        self.signal(signal.SIGTERM)
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()


@asynccontextmanager
async def own_server(
    model: str, options: Mapping[str, str], extra: tuple[str, ...] = (), store_url: str | None = None
) -> AsyncIterator[ServerProcess]:
    """A server with ``model``, ready to be talked to; on a store of its own, which goes away with it, unless ``store_url``
    names another. Raises ServerDidNotStart."""
    flags = ("--model", model, *model_flags(options), *extra)
    with tempfile.TemporaryDirectory(prefix="duologue-bench-") as folder:
        server = ServerProcess(Path(folder), flags)
        server.store_url = store_url or server.store_url
        server.start()
        try:
            await server.ready()
            yield server
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(server.stop, 15.0)


def model_flags(options: Mapping[str, str]) -> tuple[str, ...]:
    """Settings of a model as flags."""
    return tuple(flag for key, value in options.items() for flag in ("--model-option", f"{key}={value}"))


def free_port() -> int:
    """A TCP port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
