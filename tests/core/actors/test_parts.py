"""The actor's parts alone, at their edges: the outbox, the pacer, resume tokens."""

from __future__ import annotations

import pytest

from core.actors.line import Fate, RuntimeLine
from core.actors.mailbox import Mailbox, MailboxFull
from core.actors.outbox import WAITING_FRAMES_MAX, Entry, Outbox
from core.actors.pacer import Pacer
from core.actors.tokens import ResumeRefused, check_token, token_hash
from core.actors.translate import command_from
from core.ports.projection import DELTA, LIVE, TERMINAL, Frame
from core.ports.runtime import LaneEnded, Produced, RuntimeBusy
from core.session import commands as c
from core.session import events as e
from core.session.effects import ClearTurn, PauseLane
from core.session.state import Phase, SessionState

MS = 1_000_000
NOW_NS = 1_000_000_000_000
UNIT_MS = 1_000


def outbox(window_ms: int = 60_000, window_bytes: int = 1 << 20) -> Outbox:
    made = Outbox(window_ms, window_bytes)
    made.attach(1, None, (), 0)
    made.durable = 1 << 30
    return made


def add(box: Outbox, count: int, *, kind: str = LIVE, at_ns: int = NOW_NS) -> None:
    """One step of ``count`` frames; those of an answer hold a unit each."""
    sound = kind == DELTA
    frames = [
        Frame(n, n, 1, kind, {"n": n}, "r" if sound else None, "d" if sound else "", "delta" if sound else "",
              24_000, (n - 1) * UNIT_MS if sound else 0, UNIT_MS if sound else 0, 3_000 if sound else 0)
        for n in range(box.head + 1, box.head + 1 + count)
    ]  # fmt: skip
    box.extend(frames, at_ns, {"d": b"pcm"})


def deliver(box: Outbox, count: int = 1 << 30) -> list[int]:
    got = []
    while count and (item := box.peek(1)) is not None:
        assert isinstance(item, Entry)
        box.hand_over(item, NOW_NS)
        got.append(item.frame.number)
        count -= 1
    return got


def test_a_client_can_go_on_from_every_number_that_is_kept_and_from_no_other() -> None:
    box = outbox(window_ms=1_000)
    add(box, 3)
    deliver(box)
    assert [n for n in range(-1, 6) if box.knows(n)] == [0, 1, 2, 3]
    add(box, 2, at_ns=NOW_NS + 2_000 * MS)
    assert [n for n in range(-1, 7) if box.knows(n)] == [3, 4, 5], "what was handed over long ago was let go"


def test_what_was_handed_over_is_let_go_by_its_bytes_and_what_waits_is_not() -> None:
    box = outbox(window_bytes=12_000)
    add(box, 5, kind=DELTA)
    assert box.knows(0)
    deliver(box, 4)
    add(box, 1)
    assert not box.knows(0)
    assert box.kept_bytes <= 12_000
    assert deliver(box) == [5, 6]


def test_what_one_step_adds_does_not_count_until_the_next() -> None:
    box = outbox()
    add(box, WAITING_FRAMES_MAX + 50)
    assert not box.overfull
    add(box, 1)
    assert box.overfull


def test_what_is_sent_again_to_a_client_that_came_back_does_not_count() -> None:
    box = outbox()
    for _ in range(WAITING_FRAMES_MAX + 50):
        add(box, 1)
        deliver(box)
    box.attach(2, 0, (), 0)
    add(box, 1)
    add(box, 1)
    assert not box.overfull
    assert box.statistics().waiting_frames == 2


def test_a_client_that_lacks_sound_will_have_played_out_earlier() -> None:
    box = outbox()
    add(box, 3, kind=DELTA)
    deliver(box)
    assert box.played_out_ns == NOW_NS + 3 * UNIT_MS * MS
    assert box.resent(1, NOW_NS) == (("r", UNIT_MS),)
    assert box.played_out_ns == NOW_NS + UNIT_MS * MS
    assert (box.sent["r"].sent_ms, box.sent["r"].played_out_ns) == (UNIT_MS, box.played_out_ns)


def test_the_cursor_names_the_first_record_that_waits() -> None:
    box = outbox()
    add(box, 3)
    deliver(box, 1)
    assert (box.cursor().number, box.cursor().waiting) == (1, 2)
    deliver(box)
    assert (box.cursor().number, box.cursor().waiting) == (3, 0)


def test_what_a_cut_has_spared_waits_for_no_other() -> None:
    """Whatever stands is sent again to a client that comes back, and no later cut may take it from the model."""
    box = outbox()
    add(box, 3, kind=TERMINAL)
    deliver(box)
    box.cut(2, 3, 0)
    box.attach(1, 0, (), 0)
    assert box.cursor().waiting == 4
    add(box, 1)
    assert box.cursor().waiting == 4
    assert deliver(box) == [1, 2, 3, 4]
    assert box.cursor().waiting == 0


# -- the pacer --------------------------------------------------------------------------------------------------------


def unit(response_id: str = "r") -> Produced:
    return Produced("s", 1, response_id, 0, "speak", "word ", bytes(48 * UNIT_MS), 24_000, ())


def test_after_a_cut_the_lane_is_paused_anew() -> None:
    pacer = Pacer(lead_ms=400, lane_lead_ms=1_500)
    for response_id in ("first", "second"):
        for _ in range(2):
            pacer.put(unit(response_id))
        assert pacer.lane_word(0) is PauseLane
        assert pacer.lane_word(0) is None
        pacer.drop()


def test_what_is_held_of_an_older_answer_is_thrown_out_by_a_new_one() -> None:
    pacer = Pacer(lead_ms=400, lane_lead_ms=10_000)
    pacer.put(unit("first"))
    pacer.put(unit("second"))
    assert pacer.held_ms == UNIT_MS
    assert pacer.take().response_id == "second"


def test_an_answers_end_waits_for_no_lead() -> None:
    pacer = Pacer(lead_ms=400, lane_lead_ms=10_000)
    full_ns = NOW_NS + 5_000 * MS
    pacer.put(unit())
    pacer.put(LaneEnded("s", 1, "r", "completed"))
    assert pacer.due_ns(0, full_ns, NOW_NS) == full_ns - 400 * MS
    pacer.take()
    assert pacer.due_ns(0, full_ns, NOW_NS) == 0


# -- tokens -----------------------------------------------------------------------------------------------------------


def test_a_token_that_a_fresh_attachment_replaced_opens_nothing() -> None:
    state = SessionState(phase=Phase.OPEN)
    for generation, token in enumerate(("old", "new"), start=1):
        state.attachment.attach(e.Attached(generation, token_hash(token)))
    check_token(state, "new")
    for token in ("old", ""):
        with pytest.raises(ResumeRefused) as caught:
            check_token(state, token)
        assert caught.value.code == "invalid_resume_token"


# -- small ones -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "status", "why"),
    [("completed", "completed", ""), ("max_output_tokens", "incomplete", "max_output_tokens")],
)
def test_an_answers_end_is_told_with_what_it_cost(reason: str, status: str, why: str) -> None:
    command, bodies = command_from(LaneEnded("s", 1, "r", reason, input_tokens=5, output_tokens=7))
    assert command == c.ModelDone(1, "r", status, why, (5, 7))
    assert bodies == ()


def test_a_mailbox_that_was_emptied_takes_as_much_again() -> None:
    box: Mailbox[str] = Mailbox(items_max=10, bytes_max=100)
    for _ in range(3):
        box.post("a", 100)
        with pytest.raises(MailboxFull):
            box.post("b", 1)
        assert box.take() == "a"
        assert box.take() is None
        assert box.statistics().bytes == 0


class Busy:
    """A runtime whose queue is full."""

    def send(self, message: object) -> None:
        raise RuntimeBusy


def test_what_is_owed_to_somebody_who_is_gone_takes_no_room() -> None:
    line = RuntimeLine(Busy())  # type: ignore[arg-type]
    assert line.tell(ClearTurn("s")) is Fate.OWED
    assert line.statistics().owed_bytes > 0
    line.forget()
    assert (line.owes, line.statistics().owed_bytes) == (False, 0)
