"""Faults of our own and of those around us: a worker that does not keep up, a crash, a store that does not answer."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
import trio
import trio.testing

from core.actors.folding import Folded
from core.actors.line import OWED_ITEMS_MAX
from core.actors.session import Session
from core.actors.supervisor import Supervisor
from core.ports import runtime as rt
from core.ports.described import described
from core.ports.store import Owned
from core.session import commands as c
from core.session import effects as fx
from core.session import events as e
from store.memory import Fault, MemoryStore
from tests.core.actors.busy import busy_for
from tests.core.actors.stories import PUSH_TO_TALK, Story, open_story
from tests.core.plain_projection import PlainProjection

SECRET = "my secret is swordfish"


async def test_sound_that_the_worker_does_not_take_is_counted_and_the_session_lives() -> None:
    async with open_story() as story:
        lost = []
        story.session._ports.watch.input_lost = lost.append  # type: ignore[method-assign]
        with busy_for(story, rt.Feed):
            story.say(300)
            await story.wait(50)
        assert len(lost) == 3
        assert not story.session.ended


async def test_an_answer_that_cannot_be_asked_for_fails_at_once() -> None:
    async with open_story() as story:
        with busy_for(story, fx.Respond):
            story.ask()
            await story.until(lambda: story.events(e.ResponseEnded))
        assert story.events(e.ResponseEnded)[0].reason == "runtime_busy"
        assert not story.session.ended


@pytest.mark.limit(virtual_s=1_000)
@pytest.mark.parametrize("unit", [0, 3])
async def test_a_model_that_falls_silent_in_mid_answer_fails_that_answer_and_answers_the_next(unit: int) -> None:
    async with open_story(silent_at_unit=unit, fault_epoch=1) as story:
        story.ask()
        await story.wait(110_000)
        assert not story.events(e.ResponseEnded), "it is given two minutes"
        await story.until(lambda: story.events(e.ResponseEnded))
        (ended,) = story.events(e.ResponseEnded)
        assert (ended.status, ended.reason) == ("failed", "model_silent")
        assert story.session.state.responses[ended.response_id].produced_ms == unit * 200
        story.ask()
        await story.answering()


@pytest.mark.limit(virtual_s=1_000)
async def test_a_server_that_was_stopped_itself_calls_no_model_silent() -> None:
    """Two minutes in which nobody here ran: what the model said meanwhile is only read afterwards."""
    async with open_story(answer_units=20) as story:
        story.ask()
        await story.answering()
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, trio.testing.MockClock)
        clock.jump(130)  # more than ``silent_s``
        await story.until(lambda: story.events(e.ResponseEnded))
        assert [ended.status for ended in story.events(e.ResponseEnded)] == ["completed"]


@pytest.mark.limit(virtual_s=1_000)
async def test_a_lane_that_was_told_to_wait_is_not_silent() -> None:
    """Nobody takes the answer for five minutes; then somebody does."""
    patient = attrs.evolve(PUSH_TO_TALK, disconnect_grace_ms=600_000)
    async with open_story(patient, answer_units=100, rtf=0.01) as story:
        story.ask()
        response_id = await story.answering()
        story.drop_link()
        await story.wait(300_000)
        assert not story.events(e.ResponseEnded)
        await story.resume()
        await story.until(lambda: story.client.ends[response_id])
        assert [ended.status for ended in story.events(e.ResponseEnded)] == ["completed"]


WORDS = pytest.mark.parametrize(
    ("kind", "act"),
    [
        (fx.CommitTurn, Story.ask),
        (fx.ClearTurn, lambda story: story.client.post(c.ClearInput())),
        (fx.AbortLane, lambda story: (story.ask(), story.barge_in())),
        (fx.CloseSession, lambda story: story.client.post(c.Close())),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)


@WORDS
async def test_a_word_that_the_worker_does_not_take_is_told_later_and_none_overtakes_it(
    kind: type, act: Callable[[Story], object]
) -> None:
    async with open_story(settle=kind is not fx.CloseSession) as story:
        told: list[rt.ToRuntime] = []
        story.say(100)
        await story.wait(50)
        with busy_for(story, kind, told):
            act(story)
            await story.wait(50)
            after = [type(message) for message in told]
            await story.wait(200)
            assert [type(message) for message in told] == after, "something overtook it"
            assert story.servers[0].supervisor.statistics().failed == 0
        await story.until(lambda: any(isinstance(message, kind) for message in told))
        assert not story.session.line.owes
        if kind is fx.CommitTurn:
            await story.until(lambda: story.events(e.InputTranscript))


async def test_who_owes_too_much_begins_anew_from_the_log() -> None:
    """The client comes back to a session that is made of that; and the ear that was left is closed in the end."""
    async with open_story() as story:
        link = story.client.link
        assert link is not None
        assert link.attachment is not None
        told: list[rt.ToRuntime] = []
        with busy_for(story, (fx.ClearTurn, fx.CloseSession), told):
            for _ in range(OWED_ITEMS_MAX + 1):
                story.client.post(c.ClearInput())
            with trio.fail_after(5):
                await link.attachment.closed.wait()
            assert (link.attachment.close_code, link.attachment.close_reason) == (1012, "overloaded")
            await story.wait(50)
            supervisor = story.servers[0].supervisor
            assert not supervisor.sessions
            sessions_max, supervisor._sessions_max = supervisor._sessions_max, 1
            assert not supervisor.has_room, "the worker still has its ear"
            supervisor._sessions_max = sessions_max
        await story.until(lambda: any(isinstance(message, fx.CloseSession) for message in told))
        await story.wait(100)
        assert await story.resume()


async def test_an_ear_of_the_same_name_is_not_closed_by_the_one_before() -> None:
    async with open_story() as story:
        told: list[rt.ToRuntime] = []
        with busy_for(story, fx.CloseSession, told):
            story.session.stop(1012, "overloaded")
            await story.wait(50)
            story.client.drop()
            assert await story.resume()
            await story.until(lambda: any(isinstance(message, fx.OpenLane) for message in told))
        await story.wait(500)
        assert not any(isinstance(message, fx.CloseSession) for message in told)
        story.ask()
        await story.answering()


async def test_an_ear_that_cannot_be_closed_for_a_fault_of_ours_ends_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async with open_story(settle=False) as story:
        server, broken = story.servers[0], False
        usual = server.runtime.send

        def send(message: rt.ToRuntime) -> None:
            if not isinstance(message, fx.CloseSession):
                usual(message)
            elif broken:
                raise KeyError(SECRET)
            else:
                raise rt.RuntimeBusy("full")

        server.runtime.send = send  # type: ignore[method-assign]
        story.client.post(c.Close())
        await story.until(lambda: not server.supervisor.sessions)
        broken = True
        await story.wait(200)
        assert server.up
        server.supervisor._sessions_max = 1
        assert server.supervisor.has_room, "its place is free again"
        assert "was left open at its worker" in caplog.text
        assert "swordfish" not in caplog.text


async def crash(story: Story) -> None:
    """The session's actor dies of a fault of ours whose text quotes what was said."""

    def dispatch(entry: object) -> None:
        raise KeyError(SECRET)

    story.session._dispatch = dispatch  # type: ignore[method-assign,assignment]
    story.session.post(c.Touch())
    await trio.sleep(0.1)


async def test_a_crash_ends_the_session_and_its_words_stay_out_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with open_story(settle=False) as story:
        await crash(story)
        assert story.events(e.SessionClosed)[-1].reason == "internal_error:KeyError"
        assert "  KeyError | " in caplog.text
        assert "in dispatch" in caplog.text
        assert "swordfish" not in caplog.text


@pytest.mark.parametrize("looked", [False, True], ids=["before its burial", "when it was found unowned"])
async def test_a_client_that_comes_back_before_its_crashed_session_is_buried_keeps_the_new_one(
    looked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_story() as story:
        bury, take_term = Supervisor._bury, MemoryStore.take_term
        returned, buried = trio.Event(), trio.Event()
        burying = False

        async def bury_late(supervisor: Supervisor, session: Session, reason: str) -> None:
            nonlocal burying
            if not looked:
                await returned.wait()
            burying = True
            await bury(supervisor, session, reason)
            buried.set()

        async def take_late(
            store: MemoryStore, session: str, server: str, now_ns: int, position: int | None = None
        ) -> Owned:
            nonlocal burying
            if burying:  # the client takes a term too, and is not to wait for itself
                burying = False
                await returned.wait()
            return await take_term(store, session, server, now_ns, position)

        monkeypatch.setattr(Supervisor, "_bury", bury_late)
        monkeypatch.setattr(MemoryStore, "take_term", take_late)
        await crash(story)
        story.client.drop()
        assert await story.resume()
        returned.set()
        await story.until(buried.is_set)
        assert not story.events(e.SessionClosed)
        story.ask()
        await story.answering()


async def test_what_a_crashed_session_had_queued_does_not_keep_it_open() -> None:
    """Its last words reach the log after its end was asked for."""
    async with open_story(settle=False) as story:
        story.slow_store(200)
        for _ in range(3):
            story.say(100)
            await trio.sleep(0.05)
        await crash(story)
        written = len(story.events(e.Append))
        await story.until(lambda: story.events(e.SessionClosed))
        assert story.events(e.SessionClosed)[-1].reason == "internal_error:KeyError"
        assert len(story.events(e.Append)) > written, "something was on its way"


async def test_a_fault_that_one_log_meets_at_its_burial_ends_no_other_session(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_story(settle=False) as story:
        supervisor = story.servers[0].supervisor
        supervisor._make_id = lambda: "duplex-2"
        other = await supervisor.open(PUSH_TO_TALK, PlainProjection())

        async def fold(session_id: str) -> Folded | None:
            raise KeyError(SECRET)

        monkeypatch.setattr(supervisor, "_fold", fold)
        await crash(story)
        await story.wait(1_000)
        assert caplog.text.count("duplex-1 could not be closed in its log: KeyError | ") == 1
        assert "swordfish" not in caplog.text
        assert story.servers[0].up
        assert not other.ended


async def test_a_crashed_session_counts_until_its_ear_is_closed() -> None:
    """Its log is being closed, slowly, and the worker's queue does not take the word that the session is over."""
    async with open_story(settle=False) as story:
        supervisor = story.servers[0].supervisor
        supervisor._sessions_max = 1
        story.slow_store(500)
        with busy_for(story, fx.CloseSession):
            await crash(story)
            assert not supervisor.sessions
            assert not story.events(e.SessionClosed)
            assert not supervisor.has_room, "the log is not closed, and the worker still has its ear"
            await story.wait(3_000)
            assert story.events(e.SessionClosed)
            assert not supervisor.has_room, "the worker still has its ear"
        await story.wait(100)
        assert supervisor.has_room


async def test_a_lost_log_is_told_at_once_and_not_when_its_socket_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    async with open_story() as story:
        story.ask()
        await story.answering()
        story.stall_socket()
        await story.wait(300)
        link = story.client.link
        assert link is not None
        assert link.attachment is not None
        story.fail_append()
        await story.until(lambda: "lost its log: StoreFailed: injected" in caplog.text, within_s=0.5)
        assert not link.attachment.closed.is_set(), "its socket takes nothing, and is given time"
        await story.wait(2_000)
        await story.resume()


async def test_a_session_that_moves_to_another_server_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with open_story() as story:
        story.ask()
        await story.answering()
        await story.take_over()
        await story.wait(2_000)
        told = [record for record in caplog.records if "another server's now" in record.getMessage()]
        assert [record.levelname for record in told] == ["INFO"]
        assert "lost its log" not in caplog.text


@pytest.mark.parametrize(
    ("fault", "said"), [(Fault(fail_before=True), "not written"), (Fault(before_s=20.0), "no answer within 10 s")]
)
async def test_a_dead_session_that_cannot_be_closed_is_reported(
    fault: Fault, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_story(settle=False) as story:
        story.servers[0].faults.append(fault)
        await crash(story)
        await trio.sleep(11)
        (line,) = [record.getMessage() for record in caplog.records if "could not be closed" in record.getMessage()]
        assert said in line


def test_a_crash_is_described_without_its_words() -> None:
    def fail() -> None:
        try:
            raise ValueError(SECRET)
        except ValueError as cause:
            raise ExceptionGroup(SECRET, [KeyError(SECRET), OSError(SECRET)]) from cause

    with pytest.raises(ExceptionGroup) as caught:
        fail()
    text = described(caught.value)
    assert [line.split(" | ")[0].strip() for line in text.splitlines()] == [
        "ExceptionGroup",
        "KeyError",
        "OSError",
        "ValueError",
    ]
    assert "in fail" in text
    assert "swordfish" not in text
