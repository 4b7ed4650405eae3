"""A client as a real one is: it keeps its number, comes back with its token, sends again what was not confirmed, plays
what it gets; and it is a hard judge of its stream.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs
import trio

from core.actors.mailbox import MailboxFull
from core.actors.session import SessionGone
from core.actors.tokens import ResumeRefused
from core.ports.projection import Frame
from core.ports.socket import SocketClosed
from core.ports.store import Body, StoreError
from core.session import commands as c
from gpu_runtime.models.scripted import identify
from tests.core.plain_projection import CREATED, END, RESUMED

if TYPE_CHECKING:
    from core.actors.attachment import Attachment
    from core.actors.session import Session
    from tests.core.actors.stories import Server

CUT = ("cancelled", "failed")


class BrokenPromise(AssertionError):
    """``name`` is the promise's, as in the docs."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name


@attrs.define(eq=False)
class Link:
    """One socket. ``latency_s`` passes between the writing and the arrival; what is on its way when the link drops is
    lost. ``drop_after``: it drops within the so many-th write from now."""

    client: Client
    server: Server
    latency_s: float = 0.0
    up: bool = True
    stalled: trio.Event | None = None
    slow_s: float = 0.0
    """How long each write takes."""
    drop_after: int | None = None
    session: Session | None = None
    attachment: Attachment | None = None
    dead_epoch: int = 0
    close_code: int = 0
    ready: bool = False
    """The session's answer to the handshake has come."""
    on_its_way: deque[tuple[float, Any]] = attrs.field(factory=deque)

    def encode(self, frame: Frame, body: bytes | None) -> Any:
        return frame, body

    def encode_event(self, payload: Any) -> Any:
        return payload

    async def send(self, messages: Sequence[Any]) -> None:
        for data in messages:
            self._judge_write(data)
        await trio.lowlevel.checkpoint()
        if self.drop_after is not None:
            self.drop_after -= len(messages)
            if self.drop_after < 0:
                self._deliver(messages[: self.drop_after])
                self.drop()
        while self.stalled is not None and self.up:
            await self.stalled.wait()
        await trio.sleep(self.slow_s)
        if not self.up:
            raise SocketClosed
        self._deliver(messages)

    def _deliver(self, messages: Sequence[Any]) -> None:
        for data in messages:
            if not self.latency_s:
                self.client.take(self, data)
                continue
            self.on_its_way.append((trio.current_time() + self.latency_s, data))
            if len(self.on_its_way) == 1:
                self.client.nursery.start_soon(self._arrive)

    async def _arrive(self) -> None:
        """One task at a time: what is on its way keeps its order."""
        while self.on_its_way:
            at, data = self.on_its_way[0]
            await trio.sleep_until(at)
            if self.up:
                self.client.take(self, data)
            self.on_its_way.popleft()

    async def close(self, code: int, reason: str) -> None:
        await trio.lowlevel.checkpoint()
        self.close_code = code
        self.up = False

    def drop(self) -> None:
        self.up = False
        self.unstall()

    def unstall(self) -> None:
        if self.stalled is not None:
            self.stalled.set()
            self.stalled = None

    def _judge_write(self, data: Any) -> None:
        """What is written must be durable, and never of an answer whose cut end was written here."""
        if not isinstance(data, tuple):
            return
        frame, _ = data
        assert self.session is not None
        term = self.session.state.term
        if term < self.client.term_heard:
            self.client.fail("no-stale-audio", f"term {term} writes, {self.client.term_heard} has written")
        self.client.term_heard = max(self.client.term_heard, term)
        durable = self.server.database.head(self.session.session_id).position
        if frame.position > durable:
            self.client.fail("durable", f"{frame.payload} at {frame.position} was written, the log is at {durable}")
        if frame.payload["type"] == END and frame.payload["status"] in CUT:
            self.dead_epoch = max(self.dead_epoch, frame.epoch)
        if frame.digest and frame.epoch <= self.dead_epoch:
            self.client.fail("no-stale-audio", f"{frame.payload} after the end of epoch {self.dead_epoch}")


@attrs.define(eq=False)
class Client:
    """``got``: every numbered frame, by number."""

    nursery: trio.Nursery
    session_id: str = ""
    token: str = ""
    number: int = 0
    link: Link | None = None
    latency_s: float = 0.0
    got: dict[int, Frame] = attrs.field(factory=dict)
    missing: set[int] = attrs.field(factory=set)
    announced: set[int] = attrs.field(factory=set)
    ends: Counter[str] = attrs.field(factory=Counter)
    dead_epoch: int = 0
    received_ms: dict[str, int] = attrs.field(factory=dict)
    first_at: dict[str, float] = attrs.field(factory=dict)
    sent: list[tuple[str, c.Command, tuple[Body, ...]]] = attrs.field(factory=list)
    unconfirmed: list[tuple[str, c.Command, tuple[Body, ...]]] = attrs.field(factory=list)
    resumes: int = 0
    term_heard: int = 0
    """The newest term whose owner has written anything."""
    links: list[Link] = attrs.field(factory=list)
    over: str = ""
    broken: BrokenPromise | None = None

    # -- connecting --------------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return self.link is not None and self.link.up

    async def connect(self, server: Server) -> bool:
        """Resume at ``server``. False: not now (or never, see ``over``)."""
        if self.connected or self.over:
            return self.connected
        link = Link(self, server, self.latency_s)
        self.link = link
        self.links.append(link)
        try:
            session = await server.supervisor.resume(self.session_id, self.token, self.number)
            attachment = server.supervisor.attachment(link, self.number)
            link.session, link.attachment = session, attachment
            session.attach(attachment)
        except ResumeRefused as refused:
            link.drop()
            if refused.code in ("session_resume_expired", "resync_required"):
                self.over = refused.code
            elif refused.code == "session_resume_conflict" and "another server" in refused.message:
                return False
            else:  # an honest client has the right token and a number that it was sent
                self.fail("exactly-once-stream", f"{refused.code}: {refused.message}")
            return False
        except (SessionGone, MailboxFull, StoreError):
            link.drop()
            return False
        self.nursery.start_soon(self._follow, link)
        return True

    async def _follow(self, link: Link) -> None:
        """The connection's other half: the server notices in its own time that the link is gone."""
        assert link.attachment is not None
        assert link.session is not None
        while link.up and not link.attachment.closed.is_set():
            with trio.move_on_after(0.05):
                await link.attachment.closed.wait()
        link.drop()
        link.session.detach(link.attachment, "client_gone")

    def drop(self, after_frames: int = 0) -> None:
        if self.link is None:
            return
        if after_frames:
            self.link.drop_after = after_frames
        else:
            self.link.drop()

    # -- sending -----------------------------------------------------------------------------------------------

    def post(self, command: c.Command, bodies: tuple[Body, ...] = ()) -> str:
        """Send a command, now or when the link is up again. Returns its event id."""
        event_id = f"c-{len(self.sent) + 1}"
        known = (event_id, attrs.evolve(command, event_id=event_id), bodies)  # type: ignore[call-arg]
        self.sent.append(known)
        self.unconfirmed.append(known)
        self._put_on_the_wire(known)
        return event_id

    def _put_on_the_wire(self, known: tuple[str, c.Command, tuple[Body, ...]]) -> None:
        link = self.link
        if link is None or not link.up or link.attachment is None or link.session is None:
            return
        if not link.ready:
            return  # session.resumed has not come: it will be sent again then
        try:
            link.session.first_frame(link.attachment)
            link.session.post(known[1], known[2])
        except (SessionGone, MailboxFull):
            link.drop()

    def played_ms(self, response_id: str) -> int:
        """What has been played by now of an answer."""
        first = self.first_at.get(response_id)
        if first is None:
            return 0
        return min(self.received_ms[response_id], int((trio.current_time() - first) * 1000))

    # -- receiving ---------------------------------------------------------------------------------------------

    def fail(self, name: str, detail: str) -> None:
        self.broken = self.broken or BrokenPromise(name, detail)

    def take(self, link: Link, data: Any) -> None:
        if link is not self.link:
            return  # an old socket: nobody listens
        if isinstance(data, tuple):
            self._frame(*data)
        elif data["type"] == CREATED:
            link.ready = True
            self.session_id, self.token = data["session"], data["token"]
        elif data["type"] == RESUMED:
            self._resumed(data)

    def _resumed(self, data: Any) -> None:
        self.resumes += 1
        assert self.link is not None
        self.link.ready = True
        self.token = data["token"]
        self._announce(data["skipped"])
        ids = [event_id for event_id, _, _ in self.unconfirmed]
        if data["last_event_id"] in ids:
            del self.unconfirmed[: ids.index(data["last_event_id"]) + 1]
        link = self.link
        assert link is not None
        assert link.session is not None
        assert link.attachment is not None
        link.session.first_frame(link.attachment)
        for known in tuple(self.unconfirmed):
            self._put_on_the_wire(known)

    def _announce(self, ranges: Any) -> None:
        for first, last in ranges:
            numbers = set(range(first, last + 1))
            if numbers & set(self.got):
                self.fail(
                    "exactly-once-stream", f"{sorted(numbers & set(self.got))} came and were announced as skipped"
                )
            self.announced |= numbers
        self.missing -= self.announced

    def _frame(self, frame: Frame, body: bytes | None) -> None:
        if frame.number <= self.number:
            self.fail("exactly-once-stream", f"number {frame.number} after {self.number}")
        if self.got:  # a fresh stream begins where the session is
            self.missing |= set(range(self.number + 1, frame.number)) - self.announced
        self.number = frame.number
        self.got[frame.number] = frame
        kind = frame.payload["type"]
        if kind == END:
            self._end(frame)
        if frame.digest:
            self._audio(frame, body)

    def _end(self, frame: Frame) -> None:
        response_id = frame.payload["response_id"]
        self.ends[response_id] += 1
        if self.ends[response_id] > 1:
            self.fail("one-end", f"{response_id} ended again: {frame.payload}")
        if frame.payload["status"] in CUT:
            self.dead_epoch = max(self.dead_epoch, frame.epoch)
        self._announce(frame.payload["skipped"])

    def _audio(self, frame: Frame, body: bytes | None) -> None:
        response_id = frame.payload["response_id"]
        if frame.epoch <= self.dead_epoch:
            self.fail("no-stale-audio", f"{frame.payload} of epoch {frame.epoch}, {self.dead_epoch} was cut")
        if self.ends[response_id]:
            self.fail("one-end", f"audio of {response_id} after its end")
        identity = identify(body or b"")
        if identity is None or identity.epoch != frame.epoch:
            self.fail("no-stale-audio", f"the audio of {frame.payload} is {identity}, not of epoch {frame.epoch}")
        if frame.start_ms != self.received_ms.get(response_id, 0):
            self.fail("exactly-once-stream", f"{response_id} goes on at {frame.start_ms} ms, {self.received_ms}")
        self.first_at.setdefault(response_id, trio.current_time())
        self.received_ms[response_id] = frame.start_ms + frame.audio_ms
