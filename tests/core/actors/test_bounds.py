"""Every queue of an actor is bounded in items and in bytes, and nothing that is right hangs on what was forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from core.actors import mailbox as mailboxes
from core.actors import outbox as outboxes
from core.actors import pacer as pacers
from core.actors.entries import Posted
from core.actors.input_bodies import SPARE_BYTES, SPARE_ITEMS, InputBodies
from core.actors.line import OWED_BYTES_MAX, OWED_ITEMS_MAX, Fate, RuntimeLine
from core.actors.mailbox import Mailbox, MailboxFull
from core.actors.outbox import AsidesFull, Entry, Outbox
from core.actors.pacer import Pacer, PacerFull
from core.actors.weight import weight
from core.ports import runtime as rt
from core.ports.projection import DELTA, LIVE, TERMINAL, Frame
from core.session import commands as c
from core.session import effects as fx
from core.session import events as e
from core.session.config import AudioFormat
from core.session.parts import amount_needed, bodies_needed, show
from core.session.state import Chunk, Image, Item, SessionState, UnreadTurn
from tests.core.actors.stories import PUSH_TO_TALK, Story, open_story

MANY = 5_000


def flood(do: Callable[[], object], times: int = MANY) -> None:
    """Again and again."""
    for _ in range(times):
        do()


def produced(unit: int, audio: bytes = b"\0" * 480, text: str = "word ") -> rt.Produced:
    return rt.Produced("s", 1, "r", unit, "speak", text, audio, 24_000, ())


# -- what a message weighs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "bytes_at_least"),
    [
        (c.CreateItem("user", "x" * 1_000, "y" * 1_000), 2_000),
        (c.CreateItem("user", "\U0001f600" * 1_000, "{}"), 4_000),
        (produced(0, b"\0" * 4_800), 4_800),
        (rt.SpeechEnded("s", 1, 0, 10, "what was said " * 100), 1_400),
        ({"type": "error", "error": {"message": "z" * 500, "codes": ["a" * 100, "b" * 100]}}, 700),
        (fx.OpenLane("s", 1, "", "", (fx.HistoryTurn("user", "t" * 900, "i"),)), 900),
    ],
    ids=lambda value: type(value).__name__,
)
def test_texts_and_sounds_are_weighed_wherever_they_stand(message: object, bytes_at_least: int) -> None:
    assert bytes_at_least < weight(message) < bytes_at_least * 1.5 + 500


# -- the mailbox, what is held for the lane, the input's audio ------------------------------------------------------------


def test_a_mailbox_counts_the_text_of_what_is_posted() -> None:
    mailbox: Mailbox[Posted] = Mailbox()
    posted = Posted(c.CreateItem("user", "x" * 1_000_000, "{}"))
    with pytest.raises(MailboxFull):
        flood(lambda: mailbox.post(posted, weight(posted)), mailboxes.ITEMS_MAX)
    assert mailbox.statistics().bytes <= mailboxes.BYTES_MAX
    assert mailbox.statistics().items >= 10


async def test_a_flood_of_large_items_is_refused_and_the_session_lives() -> None:
    async with open_story() as story:
        with pytest.raises(MailboxFull):
            flood(lambda: story.session.post(c.CreateItem("user", "x" * 1_000_000, "{}")), 100)
        await story.wait(100)
        assert not story.session.ended


async def test_a_client_waits_for_its_own_words_to_be_written_and_not_for_the_models() -> None:
    """A store that takes half a second for each commit, and a model that is far quicker than speech."""
    eager = attrs.evolve(PUSH_TO_TALK, max_client_lead_ms=None)
    async with open_story(eager, rtf=0.001, answer_units=40) as story:
        story.ask()
        await story.answering()
        story.servers[0].slow_s = 0.5
        while len(story.session.state.responses) == 0 or story.session.state.active is not None:
            assert story.session.unwritten_bytes == 0
            await trio.sleep(0.001)
        assert story.session.outbox.durable < story.session.state.position, "much of the answer waits"
        story.say(100)
        assert story.session.unwritten_bytes >= 4_800
        await story.until(lambda: story.session.outbox.durable == story.session.state.position)
        assert story.session.unwritten_bytes == 0


@pytest.mark.parametrize("audio_bytes", [0, 1_000_000])
def test_a_lane_that_does_not_heed_its_pause_is_not_held_without_end(audio_bytes: int) -> None:
    pacer = Pacer(lead_ms=100, lane_lead_ms=1_000)
    with pytest.raises(PacerFull):
        flood(lambda: pacer.put(produced(0, bytes(audio_bytes))))
    assert len(pacer.queue) <= pacers.HELD_ITEMS_MAX
    assert pacer.held_bytes <= pacers.HELD_BYTES_MAX
    while pacer.queue:
        pacer.take()
    assert pacer.held_bytes == pacer.held_ms == 0


async def test_an_answer_of_which_too_much_is_held_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacers, "HELD_ITEMS_MAX", 20)
    paced = attrs.evolve(PUSH_TO_TALK, max_client_lead_ms=200, max_lane_lead_ms=10**7)
    async with open_story(paced, answer_units=100, rtf=0.01) as story:
        story.ask()
        await story.until(lambda: story.events(e.ResponseEnded))
        (ended,) = story.events(e.ResponseEnded)
        assert (ended.status, ended.reason) == ("failed", "mailbox_overflow")
        monkeypatch.undo()
        story.ask()
        await story.answering()


@given(st.lists(st.tuples(st.integers(1, 200_000), st.booleans()), max_size=200))
def test_the_inputs_audio_is_let_go_with_the_input(chunks: list[tuple[int, bool]]) -> None:
    state = SessionState()
    kept, side = InputBodies(), state.input
    for number, (size_bytes, committed) in enumerate(chunks):
        kept.keep({str(number): bytes(size_bytes)})
        side.pending.append(Chunk(str(number), size_bytes, 0, 10, AudioFormat()))
        side.pending_bytes += size_bytes
        if committed:  # the turn before has its transcript by now
            side.unread = {str(number): UnreadTurn(0, 10, tuple(side.pending))}
            side.pending.clear()
            side.pending_bytes = 0
        kept.let_go(state)
        needed = [chunk for turn in side.unread.values() for chunk in turn.chunks] + list(side.pending)
        needed_bytes = sum(chunk.size_bytes for chunk in needed)
        assert len(kept.bodies) <= 2 * len(needed) + SPARE_ITEMS
        assert sum(map(len, kept.bodies.values())) == kept.size_bytes <= 2 * needed_bytes + SPARE_BYTES
        assert all(kept.get(chunk.digest) is not None for chunk in needed)


@given(st.lists(st.tuples(st.integers(1, 600_000), st.booleans()), max_size=40))
def test_pictures_are_kept_while_the_conversation_shows_them(pictures: list[tuple[int, bool]]) -> None:
    state, kept = SessionState(), InputBodies()
    kept.keep({"voice": bytes(100)})
    state.reference = Image("voice", 100, "audio/wav", 0)
    for number, (size_bytes, shown) in enumerate(pictures):
        digest = str(number)
        kept.keep({digest: bytes(size_bytes)})
        if shown:
            state.items[digest] = Item(digest, "user", "message", "")
            show(state, digest, (Image(digest, size_bytes, "image/png", 0),))
        kept.let_go(state)
        items, needed_bytes = amount_needed(state)
        assert len(kept.bodies) <= 2 * items + SPARE_ITEMS
        assert sum(map(len, kept.bodies.values())) == kept.size_bytes <= 2 * needed_bytes + SPARE_BYTES
        assert all(kept.get(digest) is not None for digest in bodies_needed(state))


# -- the line -------------------------------------------------------------------------------------------------------------


class Busy:
    """A runtime whose queue is full."""

    def send(self, message: rt.ToRuntime) -> None:
        raise rt.RuntimeBusy("full")


@pytest.mark.parametrize("size_bytes", [10, 1_000_000])
def test_a_picture_of_the_moment_is_lost_and_one_of_an_item_is_owed(size_bytes: int) -> None:
    line = RuntimeLine(Busy())  # type: ignore[arg-type]
    picture = rt.Part("s", 1, "image", "d", "image/png", 0, "", "", bytes(size_bytes))
    assert line.tell(picture) is Fate.LOST
    assert line.tell(attrs.evolve(picture, item_id="mine")) is Fate.OWED
    assert line.tell(attrs.evolve(picture, kind="text", text="so")) is Fate.OWED


@pytest.mark.parametrize("size_bytes", [10, 1_000_000])
def test_what_is_owed_is_bounded(size_bytes: int) -> None:
    line = RuntimeLine(Busy())  # type: ignore[arg-type]
    word = fx.OpenLane("s", 1, "x" * size_bytes, "", ())
    fates = [line.tell(word) for _ in range(OWED_ITEMS_MAX + 1)]
    assert fates[0] is Fate.OWED
    assert fates[-1] is Fate.REFUSED
    owed = line.statistics()
    assert owed.owed_items <= OWED_ITEMS_MAX
    assert owed.owed_bytes <= OWED_BYTES_MAX
    line.close("s")
    assert line.statistics().owed_items == 1


# -- the outbox -----------------------------------------------------------------------------------------------------------


def frame(number: int, epoch: int, kind: str, text: str = "") -> Frame:
    return Frame(number, number, epoch, kind, {"text": text}, "r", audio_ms=100, size_bytes=480)


@attrs.define
class SlowFates:
    """Every cut is remembered, and each frame is judged anew: what the outbox must agree with."""

    cuts: list[tuple[int, int]] = attrs.field(factory=list)

    def is_dead(self, frame: Frame) -> bool:
        if frame.kind == LIVE:
            return False
        for epoch, cursor in self.cuts:
            if epoch > frame.epoch:
                return frame.number > cursor or frame.kind == DELTA
        return False


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("frame"), st.sampled_from([DELTA, DELTA, TERMINAL, LIVE]), st.integers(0, 2)),
        st.tuples(st.just("send"), st.integers(1, 4)),
        st.tuples(st.just("cut")),
        st.tuples(st.just("resume"), st.integers(0, 10)),
    ),
    max_size=60,
)


@given(_STEPS)
def test_what_a_cut_kills_stays_dead_and_what_it_spares_lives(steps: Iterable[tuple[object, ...]]) -> None:
    outbox, slow, epoch = Outbox(10**9, 10**9), SlowFates(), 5
    outbox.durable = 10**9
    outbox.attach(1, None, (), 0)
    for step in steps:
        match step:
            case ("frame", str(kind), int(back)):  # also one of an answer that is over
                outbox.extend([frame(outbox.head + 1, epoch - back, kind)], 0, {})
            case ("send", int(count)):
                for _ in range(count):
                    if (item := outbox.peek(1)) is not None:
                        assert isinstance(item, Entry)
                        assert not slow.is_dead(item.frame)
                        outbox.hand_over(item, 0)
            case ("cut",):
                epoch += 1
                slow.cuts.append((epoch, outbox.number))
                outbox.cut(epoch, outbox.number, 0)
            case ("resume", int(back)):
                outbox.attach(1, max(0, outbox.head - back), (), 0)
        assert [bool(entry.dead) for entry in outbox.entries] == [slow.is_dead(one.frame) for one in outbox.entries]
        waiting = [one for one in list(outbox.entries)[outbox.place :] if not one.dead]
        counted = [one for one in waiting if one.frame.number > outbox.counted_above]
        assert outbox.waiting_frames == len(counted)
        assert outbox.waiting_bytes == sum(one.size_bytes for one in counted)
        echoes = [one for one in counted if one.frame.kind == LIVE]
        assert outbox.echoes == (len(echoes), sum(one.size_bytes for one in echoes))


def test_a_thousand_cuts_later_an_end_that_was_killed_is_still_dead() -> None:
    outbox = Outbox(10**9, 10**9)
    outbox.extend([frame(1, 1, DELTA), frame(2, 1, TERMINAL)], 0, {})
    outbox.durable = 10**9
    outbox.attach(1, 0, (), 0)
    outbox.cut(2, 0, 0)
    for number in range(1_000):
        outbox.cut(3 + number, 2 + number, 0)
    assert outbox.skipped(0) == ((1, 2),)
    assert outbox.peek(1) is None


def test_the_cursor_knows_every_answer_that_the_machine_has_a_ledger_of() -> None:
    outbox = Outbox(10**9, 10**9)
    outbox.durable = 10**9
    outbox.attach(1, None, (), 0)
    answers = outboxes.SENT_MAX + 10
    for number in range(1, answers + 1):
        outbox.extend([attrs.evolve(frame(number, 1, DELTA), response_id=f"r{number}")], 0, {})
        item = outbox.peek(1)
        assert item is not None
        outbox.hand_over(item, 0)
    assert list(outbox.cursor().sent) == [f"r{number}" for number in range(11, answers + 1)]


def test_transport_answers_are_bounded_in_bytes() -> None:
    outbox = Outbox(10**9, 10**9)
    with pytest.raises(AsidesFull):
        flood(lambda: outbox.answer({"type": "error", "message": "x" * 10_000}), outboxes.ASIDES_MAX)
    assert 1 < len(outbox.asides) < outboxes.ASIDES_MAX
    outbox.attach(1, None, (), 0)
    outbox.answer({"type": "error", "message": "x" * outboxes.ASIDES_BYTES_MAX})  # alone, it may be as large as it is
    while (item := outbox.peek(1)) is not None:
        outbox.hand_over(item, 0)
    assert outbox.asides_bytes == 0


def test_a_frames_text_counts_as_much_as_its_audio() -> None:
    outbox = Outbox(10**9, 10**9)
    for number in range(1, 30):
        outbox.extend([frame(number, 1, LIVE, "x" * 100_000)], 0, {})
    assert outbox.overfull


def test_what_one_step_adds_may_be_larger_than_the_bound_while_it_is_the_newest() -> None:
    outbox = Outbox(10**9, 10**9)
    outbox.extend([frame(number, 1, LIVE, "x" * 1_000_000) for number in range(1, 4)], 0, {})
    assert not outbox.overfull
    assert outbox.crowded
    outbox.extend([], 0, {})
    assert not outbox.overfull
    outbox.extend([frame(4, 1, LIVE, "x")], 0, {})
    assert outbox.overfull


async def test_an_answer_that_nobody_is_there_to_take_fails_when_it_is_too_much() -> None:
    endless = attrs.evolve(PUSH_TO_TALK, max_lane_lead_ms=10**7)
    async with open_story(endless, answer_units=2_000, rtf=0.001) as story:
        story.ask()
        await story.answering()
        story.drop_link()
        await story.until(lambda: story.events(e.ResponseEnded))
        (ended,) = story.events(e.ResponseEnded)
        assert (ended.status, ended.reason) == ("failed", "output_backpressure")
        await story.resume()


async def test_frames_that_nobody_takes_leave_and_the_client_is_told() -> None:
    async with open_story() as story:
        session = story.session
        story.drop_link()
        for _ in range(220):
            await _lose_runtime(story)
        frames_max = outboxes.WAITING_FRAMES_MAX + session.outbox.newest[0]
        assert session.outbox.statistics().waiting_frames <= frames_max
        assert len(session.outbox.entries) <= frames_max
        await story.resume()
        assert story.client.over == "resync_required"


async def _lose_runtime(story: Story) -> None:
    """Once, within less than the grace time for a client that is gone."""
    runtime = story.servers[0].runtime
    runtime.kill_worker()
    await trio.sleep(0.01)
    await runtime.wait_ready()
