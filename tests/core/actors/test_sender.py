"""The sender alone: what goes out in one write, and what a client still gets before its socket is closed."""

from __future__ import annotations

from typing import Any

import attrs
import trio

from core.actors.attachment import TOGETHER_MAX, Attachment, run_sender
from core.actors.outbox import Outbox
from core.ports.projection import DELTA, LIVE, Frame
from core.ports.socket import SocketClosed
from tests.core.actors.test_parts import NOW_NS, add, outbox


@attrs.define
class Wire:
    """A socket that writes down the numbers of each write."""

    writes: list[list[int]] = attrs.field(factory=list)
    closed: tuple[int, str] | None = None
    broken: bool = False

    def encode(self, frame: Frame, body: bytes | None) -> str:
        return str(frame.number)

    async def send(self, messages: list[str]) -> None:
        if self.broken:
            raise SocketClosed
        await trio.lowlevel.checkpoint()
        self.writes.append([int(message) for message in messages])

    async def close(self, code: int, reason: str) -> None:
        self.closed = (code, reason)


@attrs.define
class Owner:
    """As much of a session as its sender asks for."""

    outbox: Outbox
    gone: list[str] = attrs.field(factory=list)

    @property
    def lease(self) -> Owner:
        return self

    def holds(self, now_s: float) -> bool:
        return True

    def now_ns(self) -> int:
        return NOW_NS

    def delivered(self) -> None:
        pass

    async def stream_moved(self) -> None:
        await trio.sleep(0.01)

    def left(self, attachment: Attachment, reason: str) -> None:
        self.gone.append(reason)

    async def serve(self, attachment: Attachment) -> None:
        await run_sender(self, attachment, self.left)  # type: ignore[arg-type]


def holder(wire: Wire) -> Attachment:
    socket: Any = wire
    return Attachment(socket, generation=1)


async def test_a_write_has_one_piece_of_sound_and_what_is_ready_behind_it() -> None:
    box, wire = outbox(), Wire()
    for count, kind in ((1, DELTA), (2, LIVE), (2, DELTA), (TOGETHER_MAX + 5, LIVE)):
        add(box, count, kind=kind)
    attachment = holder(wire)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Owner(box).serve, attachment)
        await trio.sleep(1)
        attachment.halt(1000, "enough")
    first, second, *rest = wire.writes
    assert (first, second) == ([1, 2, 3], [4])
    assert [write[0] for write in rest] == [5, 5 + TOGETHER_MAX]
    assert [len(write) for write in rest] == [TOGETHER_MAX, 6]
    assert wire.closed == (1000, "enough")


async def test_a_socket_is_closed_behind_the_last_words_and_not_before() -> None:
    box, wire = outbox(), Wire()
    add(box, 3)
    box.durable = 0
    attachment, owner = holder(wire), Owner(box)
    attachment.stop, attachment.close_after = (1000, "bye"), 3
    async with trio.open_nursery() as nursery:
        nursery.start_soon(owner.serve, attachment)
        await trio.sleep(1)
        assert (wire.writes, wire.closed) == ([], None), "the store is slow"
        box.durable = 3
    assert (wire.writes, wire.closed) == ([[1, 2, 3]], (1000, "bye"))
    assert owner.gone == ["bye"]


async def test_whoever_was_replaced_waits_for_no_last_words() -> None:
    box, wire = outbox(), Wire()
    attachment = holder(wire)
    attachment.stop, attachment.close_after = (1000, "bye"), 3
    box.attach(2, None, (), 0)
    box.durable = 0
    with trio.fail_after(60):
        await Owner(box).serve(attachment)
    assert wire.closed == (1000, "bye")


async def test_a_lost_connection_is_told_as_one() -> None:
    box, wire = outbox(), Wire(broken=True)
    add(box, 1)
    attachment, owner = holder(wire), Owner(box)
    await owner.serve(attachment)
    assert (attachment.close_code, attachment.close_reason, owner.gone) == (
        1006,
        "connection_lost",
        ["connection_lost"],
    )
    assert attachment.closed.is_set()
