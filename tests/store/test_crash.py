"""What was acknowledged survives: kill -9 at any instant, a failing fsync. Real processes, real files. (Torn logs:
test_torn_log.)"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest
import trio

from core.session.events import Append, InputCleared
from store.opening import open_store
from tests.store.backends import writer
from tests.store.crash_writer import SESSIONS

pytestmark = pytest.mark.crash

ROOT = Path(__file__).parents[2]
KILLS = 6
SEED = 20_240


@attrs.frozen
class Ack:
    session: str
    batch_id: str
    position: int
    digest: str


@attrs.define
class Process:
    """A running crash_writer and what it has said so far."""

    process: subprocess.Popen[bytes]
    acks: list[Ack] = attrs.field(factory=list)
    failures: list[str] = attrs.field(factory=list)
    ready: threading.Event = attrs.field(factory=threading.Event)
    reader: threading.Thread | None = None

    def listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            match line.decode().split():
                case ["ready"]:
                    self.ready.set()
                case ["ack", session, batch_id, position, digest]:
                    self.acks.append(Ack(session, batch_id, int(position), digest))
                case ["failed", *words]:
                    self.failures.append(" ".join(words))
        self.ready.set()

    def finish(self, timeout_s: float = 60.0) -> int:
        """Wait for its end; its exit status."""
        status = self.process.wait(timeout_s)
        assert self.reader is not None
        self.reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


def start(path: Path, server: str, batches: int | None = None, prefix: Sequence[str] = ()) -> Process:
    command = [*prefix, sys.executable, str(Path(__file__).with_name("crash_writer.py")), f"sqlite:///{path}", server]
    command += [] if batches is None else [str(batches)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    running = Process(subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=ROOT))
    running.reader = threading.Thread(target=running.listen)
    running.reader.start()
    return running


async def check(path: Path, acks: Sequence[Ack]) -> None:
    """Every acknowledged batch is in its log at its place, with its body; every log is whole, dense and goes on."""
    async with open_store(f"sqlite:///{path}") as store:
        for session in SESSIONS:
            batches = await store.read(session, limit=1_000_000)
            records = [record for batch in batches for record in batch.records]
            assert [record.position for record in records] == list(range(1, len(records) + 1))
            assert {len(batch.records) for batch in batches if not batch.batch_id.startswith("term")} <= {2, 3}
            assert [batch.term for batch in batches] == sorted(batch.term for batch in batches)
            ends = {(batch.batch_id, batch.records[-1].position) for batch in batches}
            assert len(ends) == len(batches)
            for ack in acks:
                if ack.session == session:
                    assert (ack.batch_id, ack.position) in ends, "an acknowledged batch is lost"
            for record in records:
                if isinstance(record.event, Append):
                    assert len(await store.body(session, record.event.digest)) == record.event.size_bytes
            row = await store.session(session)
            assert row.position == len(records)
            await writer(store, await store.take_term(session, "checker", 1)).append(*[InputCleared()] * 3)


def test_kill_at_random_instants_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite3"
    chance = random.Random(SEED)
    acks: list[Ack] = []
    for kill in range(KILLS):
        running = start(path, f"server-{kill}")
        assert running.ready.wait(60)
        time.sleep(chance.uniform(0.0, 0.3))
        running.process.send_signal(signal.SIGKILL)
        assert running.finish() == -signal.SIGKILL
        acks += running.acks
        trio.run(check, path, acks)
    assert len(acks) > KILLS, "the test has tested nothing"


@pytest.mark.needs("strace")
@pytest.mark.parametrize("write", [3, 10, 11, 12, 41])
def test_kill_at_a_write_loses_nothing_that_was_acknowledged(tmp_path: Path, write: int) -> None:
    """``write``: the ordinal of the writer thread's write at which it dies."""
    path = tmp_path / "log.sqlite3"
    assert start(path, "server-a", batches=1).finish() == 0
    inject = ("-e", "trace=pwrite64", "-e", f"inject=pwrite64:signal=SIGKILL:when={write}")
    running = start(path, "server-b", prefix=("strace", "-f", "-qq", "-o", "/dev/null", *inject))
    assert running.finish() != 0
    trio.run(check, path, running.acks)


@pytest.mark.needs("strace")
def test_a_failed_fsync_is_an_error_and_not_an_acknowledgement(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite3"
    assert start(path, "server-a", batches=1).finish() == 0
    inject = ("-e", "trace=fdatasync,fsync", "-e", "inject=fdatasync,fsync:error=EIO:when=8..9")
    running = start(path, "server-b", batches=10, prefix=("strace", "-f", "-qq", "-o", "/dev/null", *inject))
    assert running.finish() == 0
    assert running.failures, "no batch was told of the error"
    assert all("SQLITE_IOERR" in failure for failure in running.failures), running.failures
    # Each failed batch was settled by appending it again: it is in its log once (check) and acknowledged once.
    assert sorted({(ack.session, ack.batch_id) for ack in running.acks}) == sorted(
        (ack.session, ack.batch_id) for ack in running.acks
    )
    assert len(running.acks) == 10 * len(SESSIONS)
    trio.run(check, path, running.acks)
