"""A worker as a real process: how it comes up, how it dies, what it may cost, and that it never outlives its host."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from core.ports.runtime import (
    AbortLane,
    CloseSession,
    Feed,
    OpenSession,
    Part,
    Produced,
    RuntimeBusy,
    RuntimeLost,
    RuntimeReady,
)
from core.session.config import AudioFormat
from gpu_runtime.host import ModelUnavailable, WorkerOptions, open_worker
from gpu_runtime.host import process as host_process
from gpu_runtime.models.scripted import Identity, identify
from tests.gpu_runtime.plugins import install
from tests.gpu_runtime.stories import Caller, flood

pytestmark = [pytest.mark.crash, pytest.mark.realtime]

QUICK = {"unit_ms": 40, "rtf": 0.25, "first_audio_ms": 5, "answer_units": 6}
WATCHFUL = WorkerOptions(ping_interval_s=0.2, stall_timeout_s=2.0)


def is_alive(pid: int) -> bool:
    """Running, and not a zombie that waits for its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until(done: Callable[[], bool], within_s: float = 10.0) -> None:
    with trio.fail_after(within_s):
        while not done():
            await trio.sleep(0.02)


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Install a plugin for the workers of this test; its name."""

    def make(body: str) -> str:
        install(tmp_path, "odd", textwrap.dedent(body))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
        return "odd"

    return make


# --- coming up ------------------------------------------------------------------------------------------------------


async def failure(model: str, settings: dict[str, object] | None = None, options: WorkerOptions | None = None) -> str:
    with pytest.raises(ModelUnavailable) as caught:
        async with open_worker(model, settings, options=options):
            pytest.fail("it came up")
    return str(caught.value)


async def test_loading_shows_its_progress() -> None:
    seen: list[tuple[str, float]] = []
    async with open_worker("scripted", {"load_ms": 50}, on_progress=lambda *step: seen.append(step)) as runtime:
        assert runtime.capabilities is not None
        assert runtime.capabilities.model == "scripted"
    assert [fraction for _, fraction in seen] == sorted(fraction for _, fraction in seen)
    assert seen[-1] == ("reading the script", 1.0)


async def test_an_unknown_model_is_refused_with_the_names_of_those_there_are() -> None:
    text = await failure("oracle")
    assert text.startswith("there is no model called 'oracle'; installed models: ")
    assert "scripted" in text


async def test_a_failed_load_ends_with_the_models_own_words() -> None:
    assert await failure("scripted", {"load_error": "fetch the script first"}) == "fetch the script first"
    assert "has no option colour; there are: answer_units, " in await failure("scripted", {"colour": "red"})
    assert await failure("scripted", {"rtf": "fast"}) == "the scripted model's option rtf must be a number, not 'fast'"


async def test_a_plugin_that_lacks_a_package_says_which(plugin: Callable[[str], str]) -> None:
    text = await failure(plugin("import no_such_package"))
    assert "lacks a package: No module named 'no_such_package'" in text


async def test_a_load_that_crashes_tells_how(plugin: Callable[[str], str]) -> None:
    name = plugin(
        """
        def load(settings, emit, progress):
            if settings["how"] == "raise":
                raise RuntimeError("the card is on fire")
            os.kill(os.getpid(), 11)
        """
    )
    raised = await failure(name, {"how": "raise"})
    assert raised == (
        "the worker for 'odd' did not come up: exit status 70; the last it said: RuntimeError: the card is on fire"
    )
    assert "did not come up: killed by SIGSEGV" in await failure(name, {"how": "segfault"})


async def test_a_load_that_takes_too_long_is_given_up(plugin: Callable[[str], str]) -> None:
    name = plugin("def load(settings, emit, progress): time.sleep(60)")
    assert "not ready after 0.5 s" in await failure(name, options=WorkerOptions(load_timeout_s=0.5))


async def test_settings_are_not_on_the_command_line() -> None:
    async with open_worker("scripted", {"transcript": "s3cret"}) as runtime:
        command = Path(f"/proc/{runtime.pid}/cmdline").read_bytes()
        environment = Path(f"/proc/{runtime.pid}/environ").read_bytes()
    assert b"scripted" in command
    assert b"s3cret" not in command + environment


async def test_what_a_worker_prints_is_logged_line_by_line(
    plugin: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    name = plugin(
        """
        def load(settings, emit, progress):
            print("one", flush=True)
            os.write(2, b"x" * 100_000 + b"\\nlast, without an end")
            return Quiet(emit)
        """
    )
    with caplog.at_level(logging.DEBUG, "gpu_runtime.worker"):
        async with open_worker(name):
            pass
    lines = [record.getMessage().split(": ", 1)[1] for record in caplog.records if record.name == "gpu_runtime.worker"]
    assert "one" in lines
    assert "last, without an end" in lines
    assert max(map(len, lines)) <= host_process.LINE_CHARS_MAX


# --- dying ----------------------------------------------------------------------------------------------------------


async def test_kill_9_in_mid_answer() -> None:
    async with open_worker("scripted", QUICK) as runtime:
        caller = Caller(runtime)
        caller.open()
        caller.ask("a long story")
        await caller.wait_for(Produced, 3)
        first_pid = runtime.pid
        assert first_pid is not None
        os.kill(first_pid, signal.SIGKILL)
        assert (await caller.wait_for(RuntimeLost)).reason == "killed by SIGKILL"
        assert not is_alive(first_pid)
        await caller.wait_for(RuntimeReady)
        assert runtime.pid != first_pid
        caller.open(epoch=2)
        caller.ask("and now", epoch=2, response_id="r2")
        units = await caller.answered()
        assert [identify(unit.audio) for unit in units] == [Identity(2, 1, number) for number in range(6)]


async def test_a_worker_that_keeps_dying_is_started_again_with_growing_delays() -> None:
    options = WorkerOptions(restart_delays_s=(0.0, 0.3))
    async with open_worker("scripted", QUICK, options=options) as runtime:
        caller = Caller(runtime)
        for death in (1, 2, 3):
            runtime.kill_worker()
            await caller.wait_for(RuntimeLost, death)
            lost_at = trio.current_time()
            await caller.wait_for(RuntimeReady, death)
            if death > 1:
                assert trio.current_time() - lost_at >= 0.3
        assert runtime.statistics().restarts == 3


async def test_a_stopped_worker_is_noticed_killed_and_replaced() -> None:
    async with open_worker("scripted", QUICK, options=WATCHFUL) as runtime:
        caller = Caller(runtime)
        pid = runtime.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        stopped_at = trio.current_time()
        lost = await caller.wait_for(RuntimeLost)
        assert lost.reason == "stalled: no sign of life for 2 s"
        assert 1 < trio.current_time() - stopped_at < 15
        await caller.wait_for(RuntimeReady)
        assert not is_alive(pid)


async def test_a_worker_that_lives_on_is_left_alone() -> None:
    async with open_worker("scripted", QUICK, options=WATCHFUL) as runtime:
        pid = runtime.pid
        await trio.sleep(3.5)
        assert runtime.pid == pid
        assert runtime.statistics().restarts == 0


async def test_signals_to_the_whole_service_leave_the_worker_to_its_host() -> None:
    """A service manager that stops a service, or Ctrl-C: the server drains, and needs its model for that."""
    async with open_worker("scripted", QUICK) as runtime:
        caller = Caller(runtime)
        caller.open()
        await caller.barrier()
        assert runtime.pid is not None
        os.kill(runtime.pid, signal.SIGTERM)
        os.kill(runtime.pid, signal.SIGINT)
        caller.ask("still there")
        assert len(await caller.answered()) == 6
        assert runtime.statistics().restarts == 0


async def test_a_model_that_loses_a_thread_is_a_dead_worker_and_the_log_says_where_without_a_word(
    plugin: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    name = plugin(
        """
        class Frail(Quiet):
            def handle(self, message): threading.Thread(target=lambda: int("a secret")).start()
        def load(settings, emit, progress): return Frail(emit)
        """
    )
    async with open_worker(name) as runtime:
        caller = Caller(runtime)
        caller.open()
        assert (await caller.wait_for(RuntimeLost)).reason == "exit status 70"
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    (fault,) = {line for line in warned if "fault of ours: ValueError | " in line}
    assert re.search(r"\.py:\d+ in <lambda>$", fault)
    assert not any("secret" in line for line in warned)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"\xff\xff\xff\xff", "protocol error: frame_too_large: 4294967295 bytes, at most 33554432 are allowed"),
        (b"\0\0\0\5\x92\xa3fly", "protocol error: bad_frame: "),
        (b"\0\0\0\6\x92\xa3fly\x80", "protocol error: unknown_tag: 'fly'"),
        (b"\0\0\0\7\x92\xa4pong\x80", "protocol error: bad_body: pong: "),
    ],
)
async def test_a_worker_that_talks_nonsense_is_lost(plugin: Callable[[str], str], sent: bytes, reason: str) -> None:
    name = plugin(
        f"""
        class Mad(Quiet):
            def handle(self, message): os.write(int(sys.argv[sys.argv.index("--fd") + 1]), {sent!r})
        def load(settings, emit, progress): return Mad(emit)
        """
    )
    async with open_worker(name) as runtime:
        caller = Caller(runtime)
        caller.open()
        assert (await caller.wait_for(RuntimeLost)).reason.startswith(reason)
        await caller.wait_for(RuntimeReady)


async def test_a_workers_own_children_do_not_outlive_it(plugin: Callable[[str], str]) -> None:
    """Nor do they hide its death: this one was forked, and so holds the worker's socket open."""
    name = plugin(
        """
        def load(settings, emit, progress):
            child = os.fork()
            if not child:
                time.sleep(120)
                os._exit(0)
            print("child", child, flush=True)
            return Quiet(emit)
        """
    )
    async with open_worker(name) as runtime:
        caller = Caller(runtime)
        pid = runtime.pid
        assert pid is not None
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert len(children) == 1
        os.kill(pid, signal.SIGKILL)
        await caller.wait_for(RuntimeLost, within_s=5)
        await until(lambda: not is_alive(int(children[0])))


# --- bounds ---------------------------------------------------------------------------------------------------------


async def test_a_flood_is_refused_and_costs_nobody_else() -> None:
    async with open_worker("scripted", QUICK) as runtime:
        flooder, other = Caller(runtime, "flooder"), Caller(runtime, "other")
        flooder.open()
        other.open()
        await other.barrier()
        pid = runtime.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            flood(flooder, bytes(100_000))
            full = runtime.statistics()
            assert full.queue_bytes <= WorkerOptions().session_bytes_max
            assert flood(flooder, bytes(100_000)) == 0
            with pytest.raises(RuntimeBusy):  # a picture has no more right than sound
                runtime.send(Part("flooder", 1, "image", "d", "image/png", 0, "", "", bytes(100_000)))
            runtime.send(AbortLane("flooder", 1))  # steering has a reserve
            runtime.send(CloseSession("flooder"))
            other.ask("do you hear me")
        finally:
            os.kill(pid, signal.SIGCONT)
        assert len(await other.answered()) == 6
        await until(lambda: runtime.statistics().queue_items == 0)
        assert runtime.statistics().queue_bytes == 0
        assert flood(flooder, bytes(100_000)) > 0


async def test_many_floods_together_are_bounded_too() -> None:
    options = WorkerOptions(queue_items_max=100, reserve_items=5)
    async with open_worker("scripted", QUICK, options=options) as runtime:
        pid = runtime.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        for number in range(20):
            flood(Caller(runtime, f"s{number}"), bytes(50_000))
        assert runtime.statistics().queue_items == 100
        Caller(runtime, "late")
        for _ in range(5):
            runtime.send(OpenSession("late", AudioFormat(), None))
        with pytest.raises(RuntimeBusy, match="105 messages of"):
            runtime.send(OpenSession("late", AudioFormat(), None))


async def test_a_single_message_larger_than_a_share_is_refused() -> None:
    async with open_worker("scripted") as runtime:
        Caller(runtime)
        with pytest.raises(RuntimeBusy):
            runtime.send(Feed("s", 1, 0, 20, bytes(WorkerOptions().session_bytes_max)))
        assert runtime.statistics().queue_items == 0


async def test_a_death_empties_the_queue() -> None:
    async with open_worker("scripted") as runtime:
        caller = Caller(runtime)
        pid = runtime.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        flood(caller, bytes(100_000))
        await trio.sleep(0.1)
        os.kill(pid, signal.SIGKILL)
        await caller.wait_for(RuntimeReady)
        assert runtime.statistics().queue_bytes == 0
        caller.open()
        await caller.barrier()


async def test_a_model_may_not_run_ahead_of_a_host_that_does_not_read(plugin: Callable[[str], str]) -> None:
    """The worker's own queue holds its producers back; its memory stays bounded."""
    name = plugin(
        """
        from core.ports.runtime import Heard
        class Chatty(Quiet):
            def handle(self, message): threading.Thread(target=self.chat, args=(message.session,)).start()
            def chat(self, session):
                for number in range(400): self.emit(Heard(session, str(number), "x" * 1_000_000))
        def load(settings, emit, progress): return Chatty(emit)
        """
    )
    async with open_worker(name) as runtime:
        heard: list[str] = []
        runtime.subscribe("s", lambda message: heard.append(getattr(message, "item_id", "lost")))
        pid = runtime.pid
        runtime.send(CloseSession("s"))
        await until(lambda: bool(heard))
        import time

        time.sleep(1.0)  # the host does not read: this stops its whole event loop
        used_kib = int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0])
        assert used_kib < 200 * 1024
        await until(lambda: len(heard) == 400, within_s=30)
        assert heard == [str(number) for number in range(400)]


# --- the end --------------------------------------------------------------------------------------------------------


async def test_a_clean_end_lets_the_model_close(plugin: Callable[[str], str], tmp_path: Path) -> None:
    name = plugin(
        f"""
        class Tidy(Quiet):
            def close(self): open({str(tmp_path / "closed")!r}, "w").close()
        def load(settings, emit, progress): return Tidy(emit)
        """
    )
    async with open_worker(name) as runtime:
        caller = Caller(runtime)
        pid = runtime.pid
    assert (tmp_path / "closed").exists()
    assert pid is not None
    assert not is_alive(pid)
    assert not caller.of(RuntimeLost)


async def test_a_worker_that_does_not_let_go_is_killed(plugin: Callable[[str], str]) -> None:
    name = plugin(
        """
        class Clinging(Quiet):
            def close(self): time.sleep(60)
        def load(settings, emit, progress): return Clinging(emit)
        """
    )
    async with open_worker(name, options=WorkerOptions(shutdown_timeout_s=0.3)) as runtime:
        pid = runtime.pid
        began_at = trio.current_time()
    assert trio.current_time() - began_at < 5
    assert pid is not None
    assert not is_alive(pid)


async def test_cancelling_the_block_ends_the_worker() -> None:
    pid = None
    with trio.CancelScope() as scope:
        async with open_worker("scripted") as runtime:
            pid = runtime.pid
            scope.cancel()
            await trio.sleep_forever()
    assert pid is not None
    assert not is_alive(pid)


async def test_cancelling_while_it_loads_ends_the_worker(plugin: Callable[[str], str], tmp_path: Path) -> None:
    name = plugin(
        f"""
        def load(settings, emit, progress):
            open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
            progress("hanging", 0.5)
            time.sleep(60)
        """
    )
    with trio.move_on_after(30) as scope:
        async with open_worker(name, on_progress=lambda *_: scope.cancel()):
            pytest.fail("it came up")
    assert not is_alive(int((tmp_path / "pid").read_text()))


HOST = """
import sys, time, trio
from gpu_runtime.host import open_worker

async def main():
    async with open_worker({name!r}) as runtime:
        print(runtime.pid, flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


@pytest.mark.parametrize("busy", [False, True])
async def test_a_killed_host_leaves_no_worker(plugin: Callable[[str], str], busy: bool) -> None:
    """Even when its message thread is held up and so cannot see the end of its socket."""
    name = plugin(
        f"""
        class Busy(Quiet):
            def __init__(self, emit): threading.Timer(0.2, self.hold).start()
            def hold(self):
                if {busy}:
                    import ctypes
                    ctypes.PyDLL(None).sleep(60)  # with the interpreter's lock held, as bad native code would
        def load(settings, emit, progress): return Busy(emit)
        """
    )
    host = await trio.lowlevel.open_process([sys.executable, "-c", HOST.format(name=name)], stdout=-1)
    assert host.stdout is not None
    pid = int(await host.stdout.receive_some(100))
    await trio.sleep(0.5)
    assert is_alive(pid)
    os.kill(host.pid, signal.SIGKILL)
    await host.wait()
    await host.stdout.aclose()
    await until(lambda: not is_alive(pid), within_s=5)


def test_a_worker_without_a_host_ends_at_once() -> None:
    """Its socket ends before anything came."""
    import subprocess

    ours, theirs = socket.socketpair()
    command = host_process.worker_command("scripted", theirs.fileno())
    with ours, theirs, subprocess.Popen(command, pass_fds=(theirs.fileno(),)) as process:
        theirs.close()
        ours.close()
        assert process.wait(20) == 0
