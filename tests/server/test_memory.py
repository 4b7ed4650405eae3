"""What a server's process holds after floods: what it held before, and a little."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from base64 import b64encode
from pathlib import Path

import pytest
import trio

from adapters.client.trio_transport import connect
from tests.server.test_serve_command import serving

CLIENTS, MESSAGES = 4, 3
PROGRAM = """
from adapters.command_line.main import main
from adapters.server import memory
memory.LOOK_EVERY_S = 1.0
main()
"""
"""The server, which looks more often than it would."""
GIVEN_BACK_S = 90.0
"""For a machine that has other things to do; elsewhere it takes two looks."""
MORE_MIB = 80
"""Pages of the log, the interpreter's own, and what is free and little enough to be kept. A flood is more than twice that."""

BIG = json.dumps({"type": "input_audio_buffer.append", "audio": b64encode(bytes(6 * 1024 * 1024)).decode()})
UNREADABLE = '{"type": "input_audio_buffer.append", "audio": "' + "x" * (8 * 1024 * 1024)


def resident_mib(process: subprocess.Popen[str]) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    (kib,) = re.findall(r"VmRSS:\s+(\d+) kB", status)
    return int(kib) / 1024


async def flood(port: int) -> None:
    """Big sounds, big nonsense, many cancels, from several clients at a time; then they are gone."""

    async def client() -> None:
        transport = await connect(f"ws://127.0.0.1:{port}/v1/realtime", {})
        for message in (BIG, UNREADABLE) * MESSAGES:
            await transport.send(message)
            await transport.send('{"type": "input_audio_buffer.clear"}')
        for _ in range(200):
            await transport.send('{"type": "response.cancel", "event_id": "last"}')
        while '"last"' not in await transport.receive():
            pass
        await transport.close(1000, "")

    async with trio.open_nursery() as nursery:
        for _ in range(CLIENTS):
            nursery.start_soon(client)


async def until_below(process: subprocess.Popen[str], mib: float) -> float:
    """What it holds once it is below that, or after as long as giving back may take."""
    with trio.move_on_after(GIVEN_BACK_S):
        while resident_mib(process) > mib:
            await trio.sleep(0.5)
    return resident_mib(process)


@pytest.mark.realtime
@pytest.mark.limit(wall_s=400, virtual_s=380)
def test_floods_leave_nothing_behind(tmp_path: Path) -> None:
    async def story(process: subprocess.Popen[str], port: int) -> None:
        fresh = resident_mib(process)
        for _ in range(2):
            await flood(port)
            assert await until_below(process, fresh + MORE_MIB) <= fresh + MORE_MIB

    store = f"sqlite:///{tmp_path / 'log.sqlite3'}"
    with serving("--model", "scripted", "--store", store, program=("-c", PROGRAM)) as (process, port):
        trio.run(story, process, port)


@pytest.mark.needs("glibc")
def test_what_is_freed_goes_back_to_the_system() -> None:
    """In a process of its own: threads that leave pieces behind, between what lives on. None of them begins with what another
    has left."""
    program = f"""
import threading, trio
from adapters.server import memory
memory.keep_little()
memory.KEPT_BYTES_MAX, memory.LOOK_EVERY_S = {16 * 1024 * 1024}, 0.1
kept = []
all_have = threading.Barrier(4)
def work():
    pieces = [bytes(60_000) for _ in range(600)]
    all_have.wait()
    kept.append(pieces[::50])
threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
before = memory.kept_bytes()
def resident():
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmRSS"))) // 1024
held = resident()
async def wait():
    with trio.move_on_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(memory.give_back)
            while resident() >= held - 40:
                await trio.sleep(0.05)
            nursery.cancel_scope.cancel()
trio.run(wait)
print(before, held, resident())
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    kept, held, left = map(int, ran.stdout.split())
    assert kept > 48 * 1024 * 1024
    assert left < held - 40
