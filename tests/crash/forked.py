"""Servers that start quickly: each is forked from a process that has imported everything already, so that fifty kills cost
seconds of imports and not minutes. What runs in the fork is ``duologue serve``, with a worker process of its own."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import attrs

from adapters.bench.own_server import PACKAGES
from adapters.command_line import serve as _imported_before_the_fork  # noqa: F401
from adapters.command_line.main import main

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__, "psycopg", "sqlalchemy.dialects.postgresql", "sqlalchemy.dialects.sqlite"])


@attrs.define(eq=False)
class Forked:
    """The child, as adapters.bench.own_server.Child has it."""

    process: BaseProcess

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("duologue serve", timeout or 0)
        return self.process.exitcode

    def send_signal(self, sig: int) -> None:
        os.kill(self.pid, sig)


def fork(arguments: Sequence[str], words: Path) -> Forked:
    """A own_server.Launch."""
    process = CONTEXT.Process(target=_run, args=(tuple(arguments), str(words)))
    process.start()
    return Forked(process)


def _run(arguments: tuple[str, ...], words: str) -> None:
    log = os.open(words, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ["PYTHONPATH"] = str(PACKAGES)
    main(list(arguments), prog_name="duologue")
