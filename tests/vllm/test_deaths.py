"""What dies takes nothing else with it but what hangs on it: answers end, conversations go on, nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from adapters.wire.schema import names
from core.session import events as e
from core.session.history import history
from tests.gpu_runtime.test_worker_process import is_alive
from tests.vllm.conftest import Judge, VllmServer
from tests.vllm.talks import LONG, PARIS, RESTART_S, check_answers, client, replayed, status, until

pytestmark = [pytest.mark.vllm, pytest.mark.realtime, pytest.mark.crash, pytest.mark.limit(wall_s=1_500)]

GONE_S = 60.0


@attrs.frozen
class Traces:
    """What a worker and its processes hold of the machine."""

    pids: tuple[int, ...]
    shared: frozenset[Path]
    folder: Path

    @classmethod
    def of(cls, server: VllmServer) -> Traces:
        """Now."""
        pids = tuple(server.tree())
        shared = frozenset(Path(path) for pid in pids for path in mapped(pid) if path.startswith("/dev/shm/"))
        environment = dict(
            pair.split("=", 1) for pair in Path(f"/proc/{pids[0]}/environ").read_text().split("\0") if "=" in pair
        )
        return cls(pids, shared, Path(environment["TMPDIR"]))

    def left(self) -> list[str]:
        """What there still is."""
        alive = [f"process {pid}" for pid in self.pids if is_alive(pid)]
        return [*alive, *(str(path) for path in (*self.shared, self.folder) if path.exists())]

    async def gone(self) -> None:
        """Wait until all of it is."""
        with trio.move_on_after(GONE_S):
            while self.left():
                await trio.sleep(0.1)
        assert self.left() == []


def mapped(pid: int) -> set[str]:
    """Files that exist and are mapped by a process."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if line.count(" /")}
    return {path for path in paths if not path.endswith("(deleted)") and not re.search(r"/sem\.", path)}


def kill_worker(server: VllmServer) -> None:
    os.kill(server.tree()[0], signal.SIGKILL)


def kill_engine(server: VllmServer) -> None:
    os.kill(server.engine(), signal.SIGKILL)


def make_trouble(kind: str, server: VllmServer) -> None:
    """Whole at once: vLLM may look at any moment."""
    written = server.trouble.with_suffix(".new")
    written.write_text(kind)
    written.rename(server.trouble)


@pytest.mark.parametrize(
    ("strike", "reason"),
    [
        pytest.param(kill_worker, "killed by SIGKILL", id="kill -9 of the worker"),
        pytest.param(kill_engine, "exit status 70", id="kill -9 of vLLM's engine", marks=pytest.mark.soak),
        pytest.param(partial(make_trouble, "memory"), "exit status 70", id="out of memory", marks=pytest.mark.soak),
        pytest.param(partial(make_trouble, "device"), "exit status 70", id="a CUDA error", marks=pytest.mark.soak),
    ],
)
async def test_the_conversation_goes_on_after(
    vllm_server: VllmServer, judge: Judge, strike: Callable[[VllmServer], None], reason: str
) -> None:
    async with client(vllm_server) as connected, client(vllm_server) as idle:
        stream, other = connected.events(), idle.events()
        await connected.send_text(LONG)
        await until(stream, names.AUDIO_DELTA)
        traces = Traces.of(vllm_server)
        assert len(traces.pids) >= 3, "vLLM's engine is a process of its own"
        strike(vllm_server)
        assert await status(stream, RESTART_S) == "incomplete"
        await traces.gone()
        await vllm_server.ready(RESTART_S)
        await connected.send_text(PARIS)
        assert await status(stream) == "completed"
        await idle.send_text(PARIS)
        assert await status(other) == "completed"
        assert connected.statistics().reconnects == 0
        sessions = (connected.session_id, idle.session_id)
    assert not set(vllm_server.tree()) & set(traces.pids)
    replay = await replayed(vllm_server, sessions[0])
    changes = [record.event for record in replay.records if isinstance(record.event, e.RuntimeChanged)]
    assert [(change.up, change.reason) for change in changes if not change.up] == [(False, reason)]
    assert [r.event.reason for r in replay.records if isinstance(r.event, e.EpochBump)] == ["runtime_lost"]
    texts = check_answers(replay, judge)
    assert "Paris" in texts[-1]
    heard = [turn.text or "" for turn in history(replay.state) if turn.role == "assistant"]
    assert heard[0].strip(), "the cut answer is a part of what the next one knew"
    assert texts[0].startswith(" ".join(heard[0].split()))
    check_answers(await replayed(vllm_server, sessions[1]), judge)


@pytest.mark.soak
async def test_a_killed_server_leaves_no_process_and_no_shared_memory(vllm_server: VllmServer) -> None:
    """Its worker's folder of temporary files stays: nobody is there to remove it."""
    traces = Traces.of(vllm_server)
    vllm_server.signal(signal.SIGKILL)
    with trio.move_on_after(GONE_S):
        while traces.left() not in ([], [str(traces.folder)]):
            await trio.sleep(0.1)
    assert traces.left() in ([], [str(traces.folder)])
