"""A slow reader at the other end of a real worker: its writer by itself, and a process whose host is far behind."""

from __future__ import annotations

import os
import socket
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import trio

from core.ports.runtime import CloseSession, Heard, ModelStatistics, RuntimeLost
from gpu_runtime.host import WorkerOptions, open_worker
from gpu_runtime.protocol import FROM_WORKER_CODEC, Figures, FrameBuffer, FromWorker, Pong
from gpu_runtime.worker import writer as writers
from gpu_runtime.worker.writer import Writer
from tests.gpu_runtime.plugins import install
from tests.gpu_runtime.stories import Caller

pytestmark = pytest.mark.realtime

WORD = "x" * 32_768


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    host, worker = socket.socketpair()
    with closing(host), closing(worker):
        yield host, worker


def all_of(host: socket.socket) -> Iterator[FromWorker]:
    frames = FrameBuffer()
    while data := host.recv(65_536):
        yield from map(FROM_WORKER_CODEC.decode, frames.feed(data))


def test_a_full_queue_holds_its_callers_back_and_nothing_about_the_worker(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their words come whole and in order when the host reads again, and the newest answer to a ping before them."""
    monkeypatch.setattr(writers, "QUEUE_BYTES_MAX", 1024 * 1024)
    host, worker = ends
    writer = Writer(worker)
    said = 100

    def talk() -> None:
        for number in range(said):
            writer.put(Heard("s", str(number), WORD))

    talking = threading.Thread(target=talk)
    talking.start()
    talking.join(1.0)
    assert talking.is_alive()
    for number in range(3):
        writer.put_first(Pong(number))
        writer.put_first(Figures(ModelStatistics(units_done=number)))
    closing_thread = threading.Thread(target=lambda: (talking.join(), writer.close(), worker.close()))
    closing_thread.start()
    came = list(all_of(host))
    closing_thread.join()
    assert [message.item_id for message in came if isinstance(message, Heard)] == [
        str(number) for number in range(said)
    ]
    about_itself = [message for message in came if not isinstance(message, Heard)]
    assert about_itself == [Pong(2), Figures(ModelStatistics(units_done=2))]
    assert came.index(Pong(2)) < 20, "the rest of one write, and what was in the socket"


def test_a_host_that_is_gone_lets_everybody_go(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "QUEUE_BYTES_MAX", 1024 * 1024)
    host, worker = ends
    writer = Writer(worker)
    talking = threading.Thread(target=lambda: [writer.put(Heard("s", "i", WORD)) for _ in range(100)])
    talking.start()
    talking.join(0.2)
    assert talking.is_alive()
    host.close()
    talking.join(20)
    assert not talking.is_alive()
    writer.put_first(Pong(1))
    writer.close()


@pytest.mark.crash
async def test_a_host_far_behind_loses_no_worker_that_is_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes several times as long to read what waits as a silent worker is given. Meanwhile the model is held back, its
    thread for messages too: it speaks from there."""
    body = f"""
        from core.ports.runtime import Heard
        class Chatty(Quiet):
            def handle(self, message):
                for number in range(2_000): self.emit(Heard(message.session, str(number), {WORD!r}))
        def load(settings, emit, progress): return Chatty(emit)
        """
    install(tmp_path, "chatty", textwrap.dedent(body))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    options = WorkerOptions(ping_interval_s=0.1, stall_timeout_s=2.0)
    async with open_worker("chatty", options=options) as runtime:
        caller = Caller(runtime)

        def hear_slowly(message: object) -> None:
            time.sleep(0.004)

        runtime.subscribe("slow", hear_slowly)
        began = trio.current_time()
        runtime.send(CloseSession("slow"))
        runtime.send(CloseSession("s"))
        await caller.until(lambda: len(caller.got) == 2_000, within_s=60)
        assert trio.current_time() - began > 2 * options.stall_timeout_s
        assert not caller.of(RuntimeLost)
        assert runtime.statistics().restarts == 0
