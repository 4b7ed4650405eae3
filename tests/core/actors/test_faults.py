"""Faults of our own and of those around us: a worker that does not keep up, a crash, a store that does not answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import trio

from core.actors.crashes import described
from core.ports import runtime as rt
from core.session import commands as c
from core.session import effects as fx
from core.session import events as e
from store.memory import Fault
from tests.core.actors.stories import Story, open_story

SECRET = "my secret is swordfish"


@contextmanager
def busy_for(story: Story, kind: type) -> Iterator[None]:
    """The worker's queue is full for messages of that kind."""
    runtime = story.servers[0].runtime
    usual = runtime.send

    def send(message: rt.ToRuntime) -> None:
        if isinstance(message, kind):
            raise rt.RuntimeBusy("full")
        usual(message)

    runtime.send = send  # type: ignore[method-assign]
    yield
    runtime.send = usual  # type: ignore[method-assign]


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


@pytest.mark.parametrize(
    ("kind", "act"),
    [
        (fx.CommitTurn, Story.ask),
        (fx.ClearTurn, lambda story: story.client.post(c.ClearInput())),
        (fx.AbortLane, lambda story: (story.ask(), story.barge_in())),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_without_a_word_that_it_needs_the_session_begins_anew(kind: type, act: Callable[[Story], object]) -> None:
    """Of what the worker did not hear, the log knows: the client comes back to a session that is made of that."""
    async with open_story() as story:
        link = story.client.link
        assert link is not None
        assert link.attachment is not None
        story.say(100)
        await story.wait(50)
        with busy_for(story, kind):
            act(story)
            with trio.fail_after(5):
                await link.attachment.closed.wait()
        assert (link.attachment.close_code, link.attachment.close_reason) == (1012, "overloaded")
        await story.wait(50)
        assert not story.servers[0].supervisor.sessions
        assert await story.resume()


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
