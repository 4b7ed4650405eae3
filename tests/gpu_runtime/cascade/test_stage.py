"""Stages, the outbox and the transcripts: what threads share."""

from __future__ import annotations

import threading

import pytest

from core.ports.runtime import Heard, SpeechGoesOn
from gpu_runtime.models.cascade.outbox import Outbox
from gpu_runtime.models.cascade.parts import Cancel, Cancelled
from gpu_runtime.models.cascade.stage import Stage, StageFull, Urgency
from gpu_runtime.models.cascade.transcripts import Transcripts

WAIT_S = 10.0


class Blocked:
    """A stage of one thread that is busy until ``release``."""

    def __init__(self, waiting_max: int = 100) -> None:
        self.stage = Stage("test", 1, waiting_max)
        self.order: list[str] = []
        self._gate, started = threading.Event(), threading.Event()
        self.stage.submit("first", lambda: (started.set(), self._gate.wait(WAIT_S), None)[-1], Cancel())
        assert started.wait(WAIT_S)

    def add(self, session: str, label: str, urgency: Urgency = Urgency.ASKED, cancel: Cancel | None = None) -> None:
        self.stage.submit(session, lambda: self.order.append(label), Cancel() if cancel is None else cancel, urgency)

    def release(self) -> list[str]:
        done = threading.Event()
        self.stage.submit("last", done.set, Cancel(), Urgency.BACKGROUND)
        self._gate.set()
        assert done.wait(WAIT_S)
        self.stage.close()
        return self.order


def test_sessions_take_turns() -> None:
    blocked = Blocked()
    for label in ("a1", "a2", "a3"):
        blocked.add("a", label)
    for label in ("b1", "b2"):
        blocked.add("b", label)
    assert blocked.release() == ["a1", "b1", "a2", "b2", "a3"]


def test_what_was_asked_for_goes_before_trials_and_background_work() -> None:
    blocked = Blocked()
    blocked.add("a", "background", Urgency.BACKGROUND)
    blocked.add("b", "trial", Urgency.TRIAL)
    blocked.add("c", "asked")
    assert blocked.release() == ["asked", "trial", "background"]


def test_a_trial_that_was_asked_for_meanwhile_moves_up() -> None:
    blocked = Blocked()
    cancel = Cancel()
    blocked.add("a", "other trial", Urgency.TRIAL)
    blocked.add("b", "trial", Urgency.TRIAL, cancel)
    blocked.stage.promote("b", cancel)
    assert blocked.release() == ["trial", "other trial"]


def test_what_was_cancelled_is_not_run() -> None:
    blocked = Blocked()
    cancel = Cancel()
    blocked.add("a", "cancelled", cancel=cancel)
    blocked.add("a", "kept")
    cancel.cancel()
    assert blocked.release() == ["kept"]


def test_a_full_stage_refuses() -> None:
    blocked = Blocked(waiting_max=1)
    blocked.add("a", "taken")
    with pytest.raises(StageFull):
        blocked.add("b", "refused")
    assert blocked.stage.statistics().waiting == 1


def test_urgent_work_stops_background_work() -> None:
    stage = Stage("test", 1)
    running, stopped, done = threading.Event(), threading.Event(), threading.Event()
    cancel = Cancel()

    def background() -> None:
        running.set()
        cancel.waking(stopped.set)
        assert stopped.wait(WAIT_S)
        cancel.check()
        raise AssertionError("not cancelled")

    stage.submit("a", background, cancel, Urgency.BACKGROUND)
    assert running.wait(WAIT_S)
    stage.submit("b", done.set, Cancel())
    assert done.wait(WAIT_S)
    stage.close()
    assert stage.failure is None


def test_one_session_never_runs_twice_at_once() -> None:
    stage = Stage("test", 4)
    running, most, left = 0, 0, 20
    lock, done = threading.Lock(), threading.Event()

    def work() -> None:
        nonlocal running, most, left
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.001)
        with lock:
            running -= 1
            left -= 1
            if not left:
                done.set()

    for _ in range(20):
        stage.submit("a", work, Cancel())
    assert done.wait(WAIT_S)
    stage.close()
    assert most == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_ends_the_stage_and_is_kept() -> None:
    stage = Stage("test", 1)

    def fault() -> None:
        raise LookupError("ours")

    stage.submit("a", fault, Cancel())
    stage._threads[0].join(WAIT_S)
    assert isinstance(stage.failure, LookupError)


def test_cancel_wakes_and_forgets() -> None:
    cancel, woken = Cancel(), []
    forget = cancel.waking(lambda: woken.append("forgotten"))
    cancel.waking(lambda: woken.append("early"))
    forget()
    cancel.cancel()
    cancel.cancel()
    cancel.waking(lambda: woken.append("late"))
    assert woken == ["early", "late"]
    with pytest.raises(Cancelled):
        cancel.check()


def test_the_outbox_keeps_order_and_joins_what_waits() -> None:
    said: list[object] = []
    outbox = Outbox(said.append)
    place = outbox.keep_place()
    for speech_ms in (100, 200, 300):
        outbox.say(SpeechGoesOn("s", 2, speech_ms))
    assert said == []
    assert outbox.kept == 2
    outbox.fill(place, Heard("s", "item", "text"))
    assert said == [Heard("s", "item", "text"), SpeechGoesOn("s", 2, 300)]


def test_a_cleared_outbox_forgets() -> None:
    said: list[object] = []
    outbox = Outbox(said.append)
    place = outbox.keep_place()
    outbox.clear()
    outbox.fill(place, Heard("s", "item", "text"))
    outbox.say(Heard("s", "other", "text"))
    assert said == [Heard("s", "other", "text")]


def test_transcripts_are_waited_for() -> None:
    transcripts, known = Transcripts(), []
    transcripts.expect("a")
    transcripts.when_known(frozenset({"a", "never expected"}), lambda: known.append(transcripts.text("a")))
    assert known == []
    transcripts.put("a", "text")
    assert known == ["text"]
    transcripts.put("a", "again")
    assert known == ["text"]
    assert transcripts.text("never expected") == ""
