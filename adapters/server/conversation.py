"""One WebSocket from its first frame to its last: the handshake of its dialect, then frames in, commands out.

Writing is the actor's: its sender takes what the stream has. This module reads, translates and posts, and waits for a
session in two cases: after a change of the configuration, since the frames that follow are read in its light; and while
the client has not taken the answers to what it sent, or its echoes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any

import attrs
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from adapters.server.access import Identity
from adapters.server.admission import NotAdmitted
from adapters.server.metrics import WireMeter
from adapters.server.service import Service
from adapters.server.socket import WebSocket
from adapters.server.upgraded import UpgradedStream
from adapters.wire import fields
from adapters.wire.dialect import Answer, Ask, Dialect, Reader, Step, Waiting
from adapters.wire.duplex.translation import session_body
from adapters.wire.encoding import Encoder
from adapters.wire.problems import OWN_EVENT_PREFIX, Problem
from adapters.wire.schema import names
from adapters.wire.seen import Seen
from adapters.wire.served import Served
from adapters.wire.settings import with_capabilities
from core.actors.attachment import Attachment
from core.actors.mailbox import MailboxFull
from core.actors.outbox import ASIDES_MAX
from core.actors.session import Session, SessionGone
from core.actors.supervisor import Draining, SessionsFull
from core.actors.tokens import ResumeRefused
from core.ports.store import StoreError
from core.session import commands as c
from core.session.config import REFERENCE_AUDIO, SessionConfig

TRY_AGAIN_LATER = 1013
SERVICE_RESTART = 1012
POLICY_VIOLATION = 1008
INTERNAL_ERROR = 1011
CLOSE_WAIT_S = 2.0
CLIENT_GONE = (1000, "client_gone")

RETRY_AFTER_MS = 2_000
DECIDE_TIMEOUT_S = 5.0
ANSWERS_WAITING_MAX = ASIDES_MAX // 2
ANSWERS_LOOK_S = 0.01

AT_ONCE = (c.AppendAudio, c.CancelOutput, c.JudgeOverlap, c.AckPlayback, c.Touch, c.Pause, c.Unpause, c.Close)
"""Commands that do not wait for an answer to be taken: who talks over it, or cuts it, must be heard while much of it waits
to be sent. Many of them without a use (cancels of nothing) wait for their own echoes all the same, as the others wait for all
that the client has not taken: so who asks for much is pushed back by its own transport, instead of dropped as one that does
not read."""

BIG_CHARS = 256 * 1024
"""A message of more is not worked on in the event loop."""

BEHIND_BYTES_MAX = 1024 * 1024
"""Sound of one client that may be on its way to the log: 20 s of it."""

EARLY_MESSAGES_MAX = 1_024
EARLY_CHARS_MAX = 4 * 1024 * 1024
"""What is read of a client that waits in line; the message that goes beyond it is the last."""

_OFF = frozenset({"0", "false", "no", "off"})
_ON = frozenset({"1", "true", "yes", "on"})


class Refused(Exception):
    """No session for this client: what to tell it, and how to close."""

    def __init__(self, event: Mapping[str, Any], close_code: int, reason: str) -> None:
        super().__init__(reason)
        self.event = event
        self.close_code = close_code
        self.reason = reason


@attrs.frozen
class Incoming:
    """A client's event. ``big``: too much is in it to be worked on in the event loop."""

    event: Mapping[str, Any]
    big: bool


@attrs.define
class Conversation:
    """One client's connection. ``query`` is that of the URL; ``stream`` is what lies below the connection; ``identity`` says
    whose limits count."""

    service: Service
    dialect: Dialect
    connection: WebSocketConnection
    stream: UpgradedStream
    query: Mapping[str, str]
    identity: Identity = attrs.field(factory=Identity)
    session: Session | None = None
    attachment: Attachment | None = None
    meter: WireMeter | None = None
    _updates: int = 0
    _early: deque[str | bytes] = attrs.field(factory=deque)
    """Messages of a client that had to wait in line."""
    _encoder: Encoder = attrs.field(init=False)
    _reader: Reader = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        settings, capabilities = self.service.settings, self.service.runtime.capabilities
        voices = None if capabilities is None else capabilities.voices
        self.dialect = self.dialect.serving(Served(settings.model, settings.model_aliases, voices))
        self._encoder, self._reader = self.dialect.make_encoder(), self.dialect.make_reader()

    async def run(self) -> None:
        """Until the client or the session is gone. Raises only for faults of ours."""
        ending = (INTERNAL_ERROR, "internal_error")  # unless one of the ends below is reached
        try:
            first = await self._open()
            await self._converse(first)
            ending = CLIENT_GONE
        except (ConnectionClosed, trio.Cancelled) as end:
            ending = CLIENT_GONE
            if isinstance(end, trio.Cancelled):
                raise
        except Refused as refusal:
            ending = CLIENT_GONE
            await self._tell(refusal.event)
            await self._close(refusal.close_code, refusal.reason)
        finally:
            if self.session is not None and self.attachment is not None:
                if ending != CLIENT_GONE:
                    self.attachment.halt(*ending)  # a fault of ours must not look like a good end
                self.session.detach(self.attachment, ending[1])
                if ending != CLIENT_GONE:
                    with trio.move_on_after(CLOSE_WAIT_S):
                        await self.attachment.closed.wait()  # the close is written before the connection is torn down

    # -- the handshake --------------------------------------------------------------------------------------------

    async def _open(self) -> Incoming | None:
        """Get a session; the first event, where it is still to be carried out."""
        if not self.dialect.resumable or self._starts_by_itself():
            await self._open_or_explain({})
            return None
        try:
            with self.service.patience.fail_after(self.service.settings.first_frame_s):
                first = await self._first_event()
        except trio.TooSlowError:
            text = f"No first message came within {self.service.settings.first_frame_s:g} s."
            raise self._refusal("config_timeout", text, POLICY_VIOLATION) from None
        event = first.event
        kind = self.dialect.aliases.get(event["type"], event["type"])
        if kind == names.SESSION_RESUME:
            await self._resume(event)
            return None
        if kind == names.SESSION_UPDATE:
            await self._open_or_explain(event)
            return None
        await self._open_or_explain({})
        return first

    def _starts_by_itself(self) -> bool:
        """A client that names its model in the URL need not say a word, unless it asks to."""
        asks_to_wait = self.query.get("autostart", "").lower() in _OFF or self.query.get("resume", "").lower() in _ON
        return bool(self.query.get("model")) and not asks_to_wait

    async def _first_event(self) -> Incoming:
        while True:
            message = await self._next_message()
            try:
                incoming = await self._read_event(message)
            except Problem as problem:
                await self._explain(problem)
            else:
                if incoming is not None:
                    return incoming

    async def _open_or_explain(self, event: Mapping[str, Any]) -> None:
        try:
            await self._open_session(session_body(event) if event else {})
        except Problem as problem:
            problem.event_id = event.get("event_id")
            raise Refused(self.dialect.problem(problem), POLICY_VIOLATION, problem.code) from None

    async def _open_session(self, changes: Mapping[str, Any]) -> None:
        config = self._opening_config(changes)
        capabilities = self.service.runtime.capabilities
        takes_voice = capabilities is not None and REFERENCE_AUDIO in capabilities.inputs
        voice = self.dialect.reference_voice(changes) if takes_voice else []
        supervisor = self.service.supervisor

        async def start() -> Session:
            return await supervisor.open(config, self.dialect.make_projection())

        try:
            session = await self.service.admission.open(self.identity.key, start, self._tell_place, self._listen_ahead)
        except NotAdmitted as refused:
            self.service.metrics.not_admitted.labels(refused.code).inc()
            raise Refused(
                self.dialect.refusal(refused.code, refused.message, None, refused.retry_after_ms),
                TRY_AGAIN_LATER,
                refused.code,
            ) from None
        except Draining:
            raise self._refusal("shutdown", "The server is shutting down.", SERVICE_RESTART, retryable=True) from None
        except StoreError:
            text = "The session's log cannot be written at the moment."
            raise self._refusal("store_unavailable", text, TRY_AGAIN_LATER, retryable=True) from None
        self._attach(session, None)
        for ask in voice:
            session.post(ask.command, ask.bodies)

    async def _tell_place(self, waiting: Waiting) -> None:
        event = self.dialect.queue_event(waiting)
        if event is not None:
            await self.connection.send_message(self._encoder.event(event))

    async def _listen_ahead(self) -> None:
        """Read while the client waits in line: raises ConnectionClosed as soon as it hangs up. What it sends meanwhile is
        kept, within bounds; beyond them its transport pushes it back, and a hang-up is noticed when it is next told."""
        size = 0
        while len(self._early) < EARLY_MESSAGES_MAX and size < EARLY_CHARS_MAX:
            self._early.append(await self.connection.get_message())
            size += len(self._early[-1])

    async def _next_message(self) -> str | bytes:
        if not self._early:
            return await self.connection.get_message()
        await trio.lowlevel.checkpoint()
        return self._early.popleft()

    def _opening_config(self, changes: Mapping[str, Any]) -> SessionConfig:
        base = with_capabilities(
            self.service.settings.defaults_of(self.dialect.name), self.service.runtime.capabilities
        )
        model = self.query.get("model")
        named = {"model": model} if model else {}
        asked = self.dialect.opening(self.query, self.service.voices)
        return self.dialect.open_config({**named, **self.identity.session, **asked, **changes}, base)

    async def _resume(self, event: Mapping[str, Any]) -> None:
        try:
            session_id = fields.required_id(event, "session_id")
            token = fields.required_id(event, "resume_token")
            number = fields.whole(
                event.get("last_received_server_event_seq", 0), "last_received_server_event_seq", 0, 2**53
            )
        except Problem as problem:
            raise self._refusal(
                "invalid_session_resume", problem.message, POLICY_VIOLATION, param=problem.param
            ) from None
        try:
            session = await self.service.supervisor.resume(session_id, token, number)
        except ResumeRefused as refused:
            raise self._resume_refusal(session_id, refused) from None
        except SessionsFull as full:
            text = f"This server holds {full.limit} sessions already; try again later."
            raise self._refusal("resource_exhausted", text, TRY_AGAIN_LATER, retryable=True) from None
        except Draining:
            raise self._refusal("shutdown", "The server is shutting down.", SERVICE_RESTART, retryable=True) from None
        except StoreError:
            text = "The session's log cannot be read at the moment."
            raise self._refusal("runtime_resume_failed", text, TRY_AGAIN_LATER, retryable=True) from None
        if session.state.dialect != self.dialect.name:
            raise self._refusal("unsupported_session_resume", "The session speaks another dialect.", POLICY_VIOLATION)
        self.service.admission.adopt(self.identity.key, session)
        self._attach(session, number)

    def _resume_refusal(self, session_id: str, refused: ResumeRefused) -> Refused:
        if refused.code == "resync_required":
            event = {
                "type": names.SESSION_RESYNC_REQUIRED,
                "session_id": session_id,
                "reason": "journal_gap",
                "message": refused.message,
            }
            return Refused(event, POLICY_VIOLATION, refused.code)
        return self._refusal(refused.code, refused.message, POLICY_VIOLATION)

    def _attach(self, session: Session, number: int | None) -> None:
        self.meter = WireMeter(self.service.metrics, session)
        socket = WebSocket(
            self.connection,
            self.stream,
            patience=self.service.patience,
            send_timeout_s=self.service.settings.send_timeout_s,
            farewell=self._farewell,
            encoder=self._encoder,
            on_encoded=self.meter.encoded,
        )
        attachment = self.service.supervisor.attachment(socket, number)
        try:
            session.attach(attachment)
        except (MailboxFull, SessionGone):
            raise self._refusal("session_resume_expired", "The session has ended.", POLICY_VIOLATION) from None
        self.session, self.attachment = session, attachment

    def _farewell(self, code: int, reason: str) -> Mapping[str, Any] | None:
        """What is said to a client whose stream another one has taken."""
        if not self.dialect.resumable or reason != "session_replaced":
            return None
        assert self.session is not None
        assert self.attachment is not None
        return {
            "type": names.SESSION_REPLACED,
            "session_id": self.session.session_id,
            "attachment_generation": self.attachment.generation,
        }

    # -- the conversation -----------------------------------------------------------------------------------------

    async def _converse(self, first: Incoming | None) -> None:
        session, attachment = self.session, self.attachment
        assert session is not None
        assert attachment is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow, attachment)
            with self.service.patience.move_on_after(DECIDE_TIMEOUT_S):
                while not attachment.generation and not attachment.closed.is_set():
                    await session.changed()
            if attachment.generation:
                await self._read(session, attachment, first)
            else:
                await self._close(SERVICE_RESTART, "resume")  # the session ended before it could take this client
            nursery.cancel_scope.cancel()

    async def _follow(self, attachment: Attachment) -> None:
        """Close the connection of an attachment that is over, however it ended."""
        await attachment.closed.wait()
        await self._close(attachment.close_code or SERVICE_RESTART, attachment.close_reason or "resume")

    async def _read(self, session: Session, attachment: Attachment, first: Incoming | None) -> None:
        incoming = first
        while True:
            try:
                if incoming is not None:
                    await self._carry_out(incoming)
                    incoming = None  # the traceback of what ends this loop would keep it
                await self._until_answers_are_taken(session, attachment)
                incoming = await self._next_event(session, attachment)
            except Problem as problem:
                self._answer(problem)
                incoming = None
            except SessionGone:
                with trio.move_on_after(CLOSE_WAIT_S):
                    await attachment.closed.wait()  # its last words are on their way
                return
            except ConnectionClosed:
                return

    async def _next_event(self, session: Session, attachment: Attachment) -> Incoming | None:
        """Raises Problem, ConnectionClosed."""
        message = await self._next_message()
        await self.service.turnstile.through(message)
        session.first_frame(attachment)
        if not self.service.admission.allows_event(self.identity.key):
            raise Problem("rate_limit_exceeded", "This key sends more events than it may; one was dropped.")
        return await self._read_event(message)

    async def _read_event(self, message: str | bytes) -> Incoming | None:
        """Raises Problem. A big message is read and translated beside the event loop: checking and naming 10 MiB of sound
        would stop everybody for 50 ms. Meanwhile this client's next message waits, and no other."""
        big = len(message) > BIG_CHARS
        event = await trio.to_thread.run_sync(self._reader, message) if big else self._reader(message)
        return None if event is None else Incoming(event, big)

    async def _translate(self, incoming: Incoming, session: Session) -> list[Step]:
        seen = Seen.of(session.state, session.outbox.head)
        translate = partial(self.dialect.translate_event, incoming.event, seen)
        return await trio.to_thread.run_sync(translate) if incoming.big else translate()

    async def _until_answers_are_taken(self, session: Session, attachment: Attachment) -> None:
        """Read no further from a client that has many answers to take: its own transport then pushes it back. One that
        takes none is dropped by the sender's timeout."""
        while len(session.outbox.asides) > ANSWERS_WAITING_MAX and not attachment.closed.is_set():
            await trio.sleep(ANSWERS_LOOK_S)

    async def _carry_out(self, incoming: Incoming) -> None:
        session = self.session
        assert session is not None
        assert self.attachment is not None
        try:
            for step in await self._translate(incoming, session):
                match step:
                    case Ask():
                        await self._post(step)
                    case Answer():
                        session.answer(self.attachment, step.payload)
        except MailboxFull:
            text = "More input waits than this session may hold; this event was dropped."
            self._answer(Problem("input_backpressure", text, None, incoming.event.get("event_id")))
        except Problem as problem:
            self._answer(problem)

    async def _post(self, ask: Ask) -> None:
        session, command = self.session, ask.command
        assert session is not None
        echoed = self.dialect.clocked and isinstance(command, c.AppendAudio)
        await self._until_stream_is_taken(session, at_once=isinstance(command, AT_ONCE) and not echoed)
        cuts = isinstance(command, c.CancelOutput) or (
            isinstance(command, c.JudgeOverlap) and command.action == "barge_in"
        )
        if cuts and self.meter is not None:
            self.meter.asked_to_cut()
        if not isinstance(command, c.UpdateConfig):
            await self._post_with_bodies(session, ask)
            return
        if command.event_id is None:
            self._updates += 1
            assert self.attachment is not None
            own_id = f"{OWN_EVENT_PREFIX}{self.attachment.generation}.{self._updates}"
            command = attrs.evolve(command, event_id=own_id)
        session.post(command)
        await self._until_decided(session, command)

    async def _post_with_bodies(self, session: Session, ask: Ask) -> None:
        """What a client sends faster than the store writes it waits here, and then in its own transport: the store's queue
        is everybody's. Of big messages only a few are on their way at a time, whoever sent them."""
        size_bytes = sum(len(body.data) for body in ask.bodies)
        if size_bytes:
            await self._until_written(session, BEHIND_BYTES_MAX)
        if size_bytes <= BIG_CHARS:
            session.post(ask.command, ask.bodies)
            return
        async with self.service.big_bodies:
            session.post(ask.command, ask.bodies)
            await self._until_written(session, size_bytes - 1)  # then it cannot be among what waits

    async def _until_written(self, session: Session, but_for_bytes: int) -> None:
        assert self.attachment is not None
        while session.unwritten_bytes > but_for_bytes and not (session.ended or self.attachment.closed.is_set()):
            await trio.sleep(ANSWERS_LOOK_S)

    async def _until_stream_is_taken(self, session: Session, *, at_once: bool) -> None:
        """Let a client that asks for much at once (a whole history of items, say) take what it asked for, before it asks
        for more: it would look like one that does not read."""
        assert self.attachment is not None
        outbox = session.outbox
        while (outbox.echoing if at_once else outbox.crowded) and not self.attachment.closed.is_set():
            await trio.sleep(ANSWERS_LOOK_S)

    async def _until_decided(self, session: Session, command: c.UpdateConfig) -> None:
        assert self.attachment is not None
        with self.service.patience.move_on_after(DECIDE_TIMEOUT_S):
            while session.state.config is not command.config and command.event_id not in session.state.event_ids:
                await session.changed()

    # -- answers --------------------------------------------------------------------------------------------------

    def _answer(self, problem: Problem) -> None:
        assert self.session is not None
        assert self.attachment is not None
        self.service.metrics.problems.labels(problem.code).inc()
        self.session.answer(self.attachment, self.dialect.problem(problem))
        problem.let_go()

    async def _explain(self, problem: Problem) -> None:
        self.service.metrics.problems.labels(problem.code).inc()
        await self._tell(self.dialect.problem(problem))
        problem.let_go()

    async def _tell(self, event: Mapping[str, Any]) -> None:
        """Say something before there is a session."""
        with self.service.patience.move_on_after(self.service.settings.send_timeout_s):
            try:
                await self.connection.send_message(self._encoder.event(event))
            except ConnectionClosed:
                return

    async def _close(self, code: int, reason: str) -> None:
        with self.service.patience.move_on_after(self.service.settings.send_timeout_s):
            await self.connection.aclose(code, reason)

    def _refusal(
        self,
        code: str,
        message: str,
        close_code: int,
        *,
        retryable: bool | None = None,
        param: str | None = None,
    ) -> Refused:
        event = self.dialect.refusal(code, message, param, RETRY_AFTER_MS if retryable else None)
        return Refused(event, close_code, code)
