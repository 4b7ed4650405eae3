"""What a worker that was killed leaves behind: nothing, also of an engine's own processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from core.ports.runtime import RuntimeLost, RuntimeReady
from gpu_runtime.host import open_worker
from gpu_runtime.host.folder import OwnedFolder, remove_abandoned
from tests.gpu_runtime.plugins import install
from tests.gpu_runtime.stories import Caller
from tests.gpu_runtime.test_worker_process import is_alive, until

pytestmark = [pytest.mark.crash, pytest.mark.realtime]


async def test_a_killed_workers_temporary_files_go_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(
        tmp_path,
        "messy",
        textwrap.dedent(
            f"""
            import tempfile
            def load(settings, emit, progress):
                with open({str(tmp_path / "made")!r}, "a") as made:
                    made.write(tempfile.mkdtemp() + "\\n")
                return Quiet(emit)
            """
        ),
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    async with open_worker("messy") as runtime:
        caller = Caller(runtime)
        first = Path((tmp_path / "made").read_text().split()[0])
        assert first.is_dir()
        runtime.kill_worker()
        await caller.wait_for(RuntimeLost)
        await caller.wait_for(RuntimeReady)
        assert not first.parent.exists()
        second = Path((tmp_path / "made").read_text().split()[1])
        assert second.is_dir()
    assert not second.parent.exists()


def test_the_folders_of_killed_hosts_are_removed_by_the_next_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    code = "import os, sys; from gpu_runtime.host.folder import OwnedFolder; print(OwnedFolder().path, flush=True)"
    killed = subprocess.Popen(
        [sys.executable, "-c", f"{code}; sys.stdin.read()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with killed:
        assert killed.stdout is not None
        abandoned = Path(killed.stdout.readline().strip())
        (abandoned / "file").touch()
        mine = OwnedFolder()
        remove_abandoned()
        assert (abandoned.exists(), mine.path.exists()) == (True, True)
        killed.kill()
        killed.wait()
    remove_abandoned()
    assert (abandoned.exists(), mine.path.exists()) == (False, True)
    mine.remove()
    mine.remove()
    assert list(tmp_path.iterdir()) == []


async def test_what_a_killed_workers_children_shared_is_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tracker that frees it is one of its children too."""
    body = f"""
        import multiprocessing, multiprocessing.shared_memory
        def share(told):
            memory = multiprocessing.shared_memory.SharedMemory(create=True, size=1_000)
            told.send(memory.name)
            time.sleep(120)
        def load(settings, emit, progress):
            ours, theirs = multiprocessing.Pipe()
            multiprocessing.get_context("fork").Process(target=share, args=(theirs,)).start()
            mine = multiprocessing.shared_memory.SharedMemory(create=True, size=1_000)
            with open({str(tmp_path / "shared")!r}, "a") as shared:
                print(ours.recv(), mine.name, file=shared)
            return Quiet(emit)
        """
    install(tmp_path, "sharing", textwrap.dedent(body))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    async with open_worker("sharing") as runtime:
        caller = Caller(runtime)
        names = (tmp_path / "shared").read_text().split()
        assert [Path("/dev/shm", name).exists() for name in names] == [True, True]
        runtime.kill_worker()
        await caller.wait_for(RuntimeLost)
        assert [Path("/dev/shm", name).exists() for name in names] == [False, False]


PARENT = """
import multiprocessing, os, time
from gpu_runtime.engines.vllm_plugin import live_with_parent

def live():
    live_with_parent()
    os.write(1, b"%d\\n" % os.getpid())
    while os.read(0, 1):
        os.write(1, b"here\\n")

if __name__ == "__main__":
    multiprocessing.get_context("spawn").Process(target=live).start()
    time.sleep(120)
"""


@pytest.fixture
def family(tmp_path: Path) -> Callable[[], tuple[subprocess.Popen[bytes], int]]:
    """A process that has started one that lives with it: (the parent, the child's id)."""

    def start() -> tuple[subprocess.Popen[bytes], int]:
        (tmp_path / "parent.py").write_text(PARENT)
        parent = subprocess.Popen(
            [sys.executable, str(tmp_path / "parent.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        assert parent.stdout is not None
        return parent, int(parent.stdout.readline())

    return start


async def test_an_engines_process_dies_with_its_parent_and_of_nothing_milder(
    family: Callable[[], tuple[subprocess.Popen[bytes], int]],
) -> None:
    parent, child = family()
    with parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        for number in (signal.SIGTERM, signal.SIGINT):  # to the whole service, which still drains
            os.kill(child, number)
            parent.stdin.write(b"?")
            assert parent.stdout.readline() == b"here\n"
        parent.kill()
        parent.wait()
        await until(lambda: not is_alive(child))
