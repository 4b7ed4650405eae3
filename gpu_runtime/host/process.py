"""A worker as an operating-system process: start it, wait for its end, read what it prints, make sure it is gone."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections import deque

import trio

from gpu_runtime.faults import MARK
from gpu_runtime.host.folder import OwnedFolder, remove_abandoned
from gpu_runtime.host.group import end_group
from gpu_runtime.host.link import NoWorker, Starter
from gpu_runtime.plugin import Progress

log = logging.getLogger("gpu_runtime.worker")

LINE_CHARS_MAX = 4_000
"""Enough for the frames of a fault, the innermost of which is the last."""

LAST_LINES = 12
_POLL_S = 0.25
_REAP_TIMEOUT_S = 5.0


class WorkerProcess:
    """One child. ``stream`` is the host's end of the socket pair. Make it with ``start``, end it with ``close``."""

    def __init__(
        self, process: subprocess.Popen[bytes], stream: trio.SocketStream, output_fd: int, folder: OwnedFolder
    ) -> None:
        self._process = process
        self._folder = folder
        self.stream = stream
        self._output = trio.lowlevel.FdStream(output_fd)
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES)

    @classmethod
    def start(cls, model: str) -> WorkerProcess:
        """Start the interpreter; takes some milliseconds. Raises OSError when the system has no process to give.

        It is started from this thread, and not from a helper thread as trio does: the kernel counts the thread that
        forks as the parent, and would kill the child when trio lets an idle helper go.

        Its temporary files (sockets of an engine's own processes, say) go to a folder of its own, which goes with it: a
        killed process clears nothing up.
        """
        folder = OwnedFolder()
        ours, theirs = socket.socketpair()
        output_fd, their_output = os.pipe()
        try:
            process = subprocess.Popen(
                worker_command(model, theirs.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=their_output,
                stderr=their_output,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "TMPDIR": str(folder.path)},
                start_new_session=True,  # Ctrl-C goes to the server alone; a kill reaches the worker's children too
            )
        except OSError:
            ours.close()
            os.close(output_fd)
            folder.remove()
            raise
        finally:
            theirs.close()
            os.close(their_output)
        return cls(process, trio.SocketStream(trio.socket.from_stdlib_socket(ours)), output_fd, folder)

    @property
    def pid(self) -> int:
        """The child's process id, which is its process group's too."""
        return self._process.pid

    @property
    def last_words(self) -> str:
        """The last line that it printed, for a message to a person; "" when it was silent."""
        return next((line for line in reversed(self._last_lines) if line.strip()), "")

    async def wait(self) -> str:
        """Wait for its end; how it ended, in words. Safe to cancel."""
        if sys.platform == "linux" and self._process.returncode is None:  # once reaped, its number may be another's
            with contextlib.suppress(OSError):  # gone already, or a kernel without pidfds: then it is polled
                await _wait_pidfd(self.pid)
                await end_group(self.pid)  # children that it left behind
        while (status := self._process.poll()) is None:
            await trio.sleep(_POLL_S)
        return describe_exit(status)

    def kill(self) -> None:
        """SIGKILL to it, and ``wait`` sees to whatever it started; nothing when it is gone already."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                (os.kill if sys.platform == "linux" else os.killpg)(self.pid, signal.SIGKILL)

    async def log_output(self) -> None:
        """Put what it prints into our log, line by line, long ones shortened, until it closes its end."""
        rest = b""
        async for data in self._output:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._log_line(line)
            if len(rest) > LINE_CHARS_MAX:
                self._log_line(rest)
                rest = b""
        if rest:
            self._log_line(rest)

    async def close(self) -> None:
        """Kill it if it lives, reap it, and free everything. Not to be cancelled; takes _REAP_TIMEOUT_S at most."""
        self.kill()
        with trio.CancelScope(shield=True):
            with trio.move_on_after(_REAP_TIMEOUT_S) as reaping:
                await self.wait()
            if reaping.cancelled_caught:
                log.error("worker %d does not end although it was killed", self.pid)
            with trio.move_on_after(0.2):  # its last words; a grandchild may hold the pipe open
                await self.log_output()
            await trio.aclose_forcefully(self.stream)
            await trio.aclose_forcefully(self._output)
            await trio.to_thread.run_sync(self._folder.remove)

    def _log_line(self, line: bytes) -> None:
        text = line[:LINE_CHARS_MAX].decode("utf-8", "replace").rstrip()
        self._last_lines.append(text)
        # A library may print what was said.
        log.log(logging.WARNING if text.startswith(MARK) else logging.DEBUG, "worker %d: %s", self.pid, text)


def process_starter(model: str) -> Starter:
    """Starts workers for ``model`` on this machine. The temporary files of hosts that were killed go first."""

    async def start(_progress: Progress) -> WorkerProcess:
        await trio.to_thread.run_sync(
            remove_abandoned
        )  # they may be many, and a worker is also started again amid sessions
        try:
            return WorkerProcess.start(model)
        except OSError as error:
            raise NoWorker(f"no process could be started: {error.strerror}") from error

    return start


def worker_command(model: str, fd: int) -> list[str]:
    """How a worker is started. -P: the server's working directory holds no modules of ours."""
    return [sys.executable, "-P", "-m", "gpu_runtime.worker", "--model", model, "--fd", str(fd)]


def describe_exit(status: int) -> str:
    """``status`` as subprocess gives it, in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


async def _wait_pidfd(pid: int) -> None:
    """Wait until ``pid``, a child that was not reaped, ends. Raises OSError."""
    pidfd = os.pidfd_open(pid)
    try:
        await trio.lowlevel.wait_readable(pidfd)
    finally:
        os.close(pidfd)
