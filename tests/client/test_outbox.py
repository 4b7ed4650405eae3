"""What the client has to say: kept, confirmed, said again."""

from __future__ import annotations

import pytest

from adapters.client import outbox
from adapters.client.errors import SendBufferFull
from adapters.client.outbox import Outbox, Outgoing


def append(place: int, duration_ms: int = 100) -> Outgoing:
    return Outgoing(f"e{place}", f"append {place}", place * duration_ms, duration_ms)


def send(box: Outbox, *events: Outgoing) -> None:
    for event in events:
        box.put(event)
        assert box.take() == event.text


def rest(box: Outbox) -> list[str]:
    return list(iter(box.take, None))


def test_the_last_durable_id_says_what_is_sent_again() -> None:
    box = Outbox()
    send(box, *(append(place) for place in range(5)))
    box.put(append(5))
    box.resume(300, "e2")
    assert rest(box) == ["append 3", "append 4", "append 5"]
    assert box.statistics().resent_items == 2


def test_without_a_known_id_the_input_clock_decides() -> None:
    box = Outbox()
    send(box, *(append(place) for place in range(3)), Outgoing("commit", "commit"), append(3))
    box.resume(299, "of another client")
    assert rest(box) == ["commit", "append 3"]


def test_commands_before_durable_audio_are_durable() -> None:
    box = Outbox()
    send(box, append(0), Outgoing("commit", "commit"), append(1), Outgoing("clear", "clear"))
    box.resume(200, None)
    assert rest(box) == ["clear"]


def test_a_server_that_says_nothing_gets_nothing_twice() -> None:
    box = Outbox()
    send(box, append(0), append(1))
    box.put(append(2))
    box.resume(None, None)
    assert rest(box) == ["append 2"]


def test_an_ack_marks_a_place_and_is_not_sent_again() -> None:
    box = Outbox()
    send(box, append(0), Outgoing("commit", "commit"))
    box.mark("ack")
    send(box, append(1))
    box.resume(100, "ack")
    assert rest(box) == ["append 1"]
    box.mark("ack 2")
    box.resume(100, None)
    assert rest(box) == ["append 1"]


def test_ten_seconds_are_kept_and_a_loss_beyond_is_told() -> None:
    box = Outbox()
    send(box, *(append(place) for place in range(150)))
    assert box.statistics().unconfirmed_ms == 10_000
    assert box.statistics().forgotten_items == 50
    box.resume(4_000, "unknown")
    assert box.statistics().lost_input_ms == 1_000
    assert len(rest(box)) == 100


def test_bytes_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "UNCONFIRMED_BYTES_MAX", 20)
    box = Outbox()
    send(box, *(append(place) for place in range(5)))
    assert box.statistics().unconfirmed_items == 2


def test_what_waits_is_bounded_and_a_refusal_changes_nothing() -> None:
    box = Outbox(waiting_bytes_max=20)
    box.put(append(0))
    box.put(append(1))
    with pytest.raises(SendBufferFull):
        box.put(append(2))
    assert rest(box) == ["append 0", "append 1"]
