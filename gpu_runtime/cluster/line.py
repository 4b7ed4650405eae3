"""The server's end of a line: a worker's bytes, carried by calls to an actor somewhere else.

Knows no Ray: ``Calls`` is what it needs of an actor, and the tests have one without a cluster.
"""

from __future__ import annotations

from typing import Protocol

import trio

from gpu_runtime.host.process import describe_exit


class WorkerGone(Exception):
    """The actor cannot be reached, or is not the one that it was. The text says how it ended, for a session's log."""


class Calls(Protocol):
    """The calls of ``WorkerActor`` for one line, made from here. Each raises WorkerGone."""

    async def push(self, data: bytes) -> None: ...
    async def pull(self) -> bytes: ...
    async def let_go(self) -> None: ...
    async def wait(self) -> int: ...
    def kill(self) -> None:
        """End its process, wherever it is; a new one will be there by itself."""


class LineStream:
    """gpu_runtime.host.link.ByteStream over calls. One call a direction at a time, so the order is that of the bytes."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def send_all(self, data: bytes) -> None:
        """See ByteStream."""
        try:
            await self._calls.push(data)
        except WorkerGone as error:
            raise trio.BrokenResourceError from error

    async def receive_some(self, max_bytes: int) -> bytes:
        """See ByteStream; the worker's side chooses how many."""
        try:
            return await self._calls.pull()
        except WorkerGone as error:
            raise trio.BrokenResourceError from error

    async def send_eof(self) -> None:
        """See ByteStream."""
        try:
            await self._calls.let_go()
        except WorkerGone as error:
            raise trio.BrokenResourceError from error


class LineLink:
    """gpu_runtime.host.link.Link over calls. What the worker prints stays in the logs of its own machine."""

    last_words = ""

    def __init__(self, calls: Calls, pid: int) -> None:
        self._calls = calls
        self._pid = pid
        self._gone = False
        self.stream = LineStream(calls)

    @property
    def pid(self) -> int:
        """See Link."""
        return self._pid

    async def log_output(self) -> None:
        """Nothing of it comes here."""

    async def wait(self) -> str:
        """See Link."""
        try:
            status = await self._calls.wait()
        except WorkerGone as error:
            self._gone = True
            return str(error)
        self._gone = status == 0
        return describe_exit(status)

    def kill(self) -> None:
        """See Link."""
        self._calls.kill()

    async def close(self) -> None:
        """See Link. A process that let go by itself is left to whoever placed it."""
        if not self._gone:
            self._calls.kill()
