"""The session actor: one task, one mailbox, the only writer of its log.

Each step takes one thing from the mailbox, lets the machine decide and fold, queues the batch for the store, projects the
frames, and carries out the effects, all without an await. What a client may see waits in the outbox until its record is
durable; feeding the model does not wait. If an append fails, this object and its memory are thrown away.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio

from core.actors.attachment import Attachment, run_sender
from core.actors.batching import batch_of
from core.actors.entries import Entry, Left, Posted
from core.actors.input_bodies import InputBodies
from core.actors.lease import Lease, renew
from core.actors.mailbox import Mailbox, MailboxFull
from core.actors.outbox import AsidesFull, Outbox
from core.actors.pacer import Pacer
from core.actors.ports import Ports as Ports
from core.actors.ports import Watch as Watch
from core.actors.translate import command_from
from core.ports import runtime as rt
from core.ports.projection import Credentials, Frame, Projection, Resumption
from core.ports.store import Body, StoreBusy, StoreError, TermRefused
from core.session import commands as c
from core.session import effects as fx
from core.session import events as e
from core.session.deadlines import earliest
from core.session.digest import chain_digest
from core.session.machine import step
from core.session.state import Phase, SessionState

NS_PER_S = 1_000_000_000

RESUME_ELSEWHERE = 1012
"""WebSocket close code (service restart) that makes a client resume."""


class SessionGone(Exception):
    """The session's actor has ended; resume may find it in the log."""


class Session:
    """One live session. Others read ``state`` and call the plain methods, which never wait."""

    def __init__(
        self,
        ports: Ports,
        state: SessionState,
        projection: Projection,
        outbox: Outbox,
        chain: bytes,
        fresh: bool = True,
        lease: Lease | None = None,
    ) -> None:
        self.state = state
        self.outbox = outbox
        self.projection = projection
        self.failure: str | None = None
        self.term = state.term
        """Under which this actor writes; the fence of everything that it appends."""
        self.lease = lease or Lease(trio.current_time())
        self._ports = ports
        self._chain = chain
        self._clock_base_ns = max(ports.now_ns(), state.at_ns) - round(trio.current_time() * NS_PER_S)
        self._fresh = fresh
        self._mailbox: Mailbox[Entry] = Mailbox()
        self._pacer = Pacer(state.config.max_client_lead_ms, state.config.max_lane_lead_ms)
        self._input_bodies = InputBodies()
        self._attachment: Attachment | None = None
        self._nursery: trio.Nursery | None = None
        self._moved = trio.Event()
        self._ended = False
        self._stopping: tuple[int, str] | None = None
        self._outputs_lost = False

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self.state.session_id

    @property
    def attachment(self) -> Attachment | None:
        """Who holds the stream now."""
        return self._attachment

    @property
    def ended(self) -> bool:
        """The actor takes nothing more; the log is the session."""
        return self._ended

    def now_ns(self) -> int:
        """The log's clock: the wall clock as it was when the actor began, carried on by the monotonic one. So a wall clock
        that is set while the session lives makes no deadline fire and no audio wait."""
        return max(self._clock_base_ns + round(trio.current_time() * NS_PER_S), self.state.at_ns)

    # -- what others may ask; none of it waits -----------------------------------------------------------------

    def post(self, command: c.Command, bodies: tuple[Body, ...] = ()) -> None:
        """Queue a command with the bodies that it names. Raises MailboxFull, SessionGone."""
        if self._ended:
            raise SessionGone(self.session_id)
        self._mailbox.post(Posted(command, bodies), sum(len(body.data) for body in bodies))

    def attach(self, attachment: Attachment) -> None:
        """Give the stream to ``attachment``, once what was posted before is decided. Raises MailboxFull, SessionGone."""
        if self._ended:
            raise SessionGone(self.session_id)
        self._mailbox.post(attachment)

    def detach(self, attachment: Attachment, reason: str) -> None:
        """The peer of ``attachment`` is gone. Safe to call at any time, also twice."""
        attachment.halt(*(attachment.stop or (1000, reason)))
        self._move()
        if not self._ended:
            self._post_or_fail(Left(attachment, reason))

    def answer(self, attachment: Attachment, payload: Mapping[str, Any]) -> None:
        """A transport-level answer: unnumbered, not in the log. A client that asks and never reads is dropped."""
        if attachment is not self._attachment:
            return
        try:
            self.outbox.answer(payload)
        except AsidesFull:
            attachment.halt(1008, "slow_reader")
        self._move()

    def first_frame(self, attachment: Attachment) -> None:
        """A frame came in on a resumed attachment: the token before it is dead from now on. Cheap to call for every frame,
        and does nothing while the new token has not been handed over: such a frame does not show that it arrived."""
        if attachment.generation == self.state.attachment.generation and not self.outbox.opening:
            self.confirm_token()

    def confirm_token(self) -> None:
        """Somebody has shown the newest token: its answer arrived, the one before it is dead."""
        link = self.state.attachment
        if not link.confirmed and not self._ended:
            self._post_or_fail(Posted(c.ConfirmToken(link.generation)))

    def stop(self, code: int, reason: str) -> None:
        """End the actor, not the session: close the socket so that the client resumes elsewhere."""
        self._stopping = (code, reason)
        self._mailbox.nudge()

    def take_message(self, message: rt.FromRuntime) -> None:
        """The runtime's sink."""
        if self._ended:
            return
        size_bytes = len(message.audio) if isinstance(message, rt.Produced) else 0
        try:
            self._mailbox.post(message, size_bytes)
        except MailboxFull:
            if isinstance(message, rt.Produced):
                self._outputs_lost = True  # noted at the next step: that answer fails, the session lives
                self._mailbox.nudge()
            else:  # a word that the session cannot do without: begin again from the log
                self.stop(RESUME_ELSEWHERE, "overloaded")

    # -- what the sender asks ----------------------------------------------------------------------------------

    async def stream_moved(self) -> None:
        """Wait until the stream may have something to write."""
        await self._moved.wait()

    async def load_body(self, digest: str) -> bytes | None:
        """Audio that is no longer in memory (of several digests joined by ``+``: all of it); None when it was erased."""
        store, parts = self._ports.store, digest.split("+")
        try:
            return b"".join([await store.body(self.session_id, part) for part in parts])
        except KeyError:
            return None

    async def renew_lease(self) -> None:
        """Wait until the old owner is silent, and ask the store whether the session is still ours."""
        await renew(self, self._ports.store)

    def lose_term(self, term: int) -> None:
        """``term`` was given out. If it is not ours, the session lives elsewhere: end here at once."""
        if term > self.term and not self._ended:
            self.fail(TermRefused(f"term {term} was given out, ours is {self.term}"))

    def delivered(self) -> None:
        """The sender handed a frame over: held output may be due, a paused lane may go on."""
        self._ports.watch.handed_over(self)
        if self._pacer.queue or self._pacer.paused:
            self._mailbox.nudge()

    # -- the actor ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Live until the session is closed, stopped, or its log refuses us (``failure`` says why)."""
        runtime = self._ports.runtime
        runtime.subscribe(self.session_id, self.take_message)
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                if self._fresh:
                    self._gain_runtime()
                while not self._ended:
                    await self._turn()
                await self._settle_socket()
                nursery.cancel_scope.cancel()
        finally:
            runtime.unsubscribe(self.session_id, self.take_message)
            self._end()
            self._nursery = None
            self._drop_attachments()

    async def _turn(self) -> None:
        with trio.move_on_after(self._wait_s()):
            await self._mailbox.wait()
        while not self._ended and (entry := self._mailbox.take()) is not None:
            self._dispatch(entry)
        if self._ended:
            return
        self._release_paced()
        self._check_bounds()
        due = earliest(self.state)
        if due is not None and due.at_ns <= self.now_ns():
            self._step(c.FireDeadline())
        if self._stopping is not None:
            self._stop_now(*self._stopping)

    def _wait_s(self) -> float:
        now = self.now_ns()
        waits = []
        due = earliest(self.state)
        if due is not None:
            waits.append(due.at_ns - now)
        paced = self._paced_due_ns()
        if paced is not None:
            waits.append(paced - now)
        return max(0.0, min(waits) / NS_PER_S) if waits else float("inf")

    def _dispatch(self, entry: Entry) -> None:
        match entry:
            case Posted():
                self._step(entry.command, entry.bodies)
            case Attachment():
                self._switch_to(entry)
            case Left():
                self._leave(entry.attachment, entry.reason)
            case rt.Produced() | rt.LaneEnded() | rt.LaneFailed():
                self._pace(entry)
            case rt.RuntimeReady() if self.state.runtime_up:
                pass
            case _:
                self._step(*command_from(entry))

    # -- one step, without an await ----------------------------------------------------------------------------

    def _step(self, command: c.Command, bodies: tuple[Body, ...] = ()) -> tuple[e.Record, ...]:
        frames: list[Frame] = []
        fold = self.projection.fold

        def project(record: e.Record, state: SessionState) -> None:
            frames.extend(fold(record, state))

        result = step(self.state, command, self.now_ns(), self.outbox.cursor(), project)
        if not result.records:
            if isinstance(command, c.ModelOutput):
                self._ports.watch.stale_output(self)
            return ()
        self._chain = chain_digest(self._chain, self._ports.encode((result.effects, frames)))
        named = {body.digest: body.data for body in bodies}
        self._append(result.records, named)
        if any(isinstance(record.event, e.EpochBump) for record in result.records):
            self._pacer.drop()
        self._perform_fences(result.effects, result.records)
        self.outbox.extend(frames, result.records[-1].at_ns, named)
        if isinstance(command, c.AppendAudio):
            self._input_bodies.keep(named)
        for effect in result.effects:
            self._perform(effect)
        pending = self.state.input.pending
        self._input_bodies.let_go(pending, len(pending))
        self._ports.watch.stepped(self, result.records)
        self._move()
        return result.records

    def _append(self, records: tuple[e.Record, ...], bodies: Mapping[str, bytes]) -> None:
        batch = batch_of(self.state, self.term, records, self._chain, bodies)
        queued_at = trio.current_time()
        position = records[-1].position

        def done(error: StoreError | None) -> None:
            self._written(position, error, queued_at)

        try:
            self._ports.store.append_nowait(batch, done)
        except StoreBusy as error:
            self.fail(error)

    def _written(self, position: int, error: StoreError | None, queued_at: float) -> None:
        if error is not None:
            self.fail(error)
            return
        self.outbox.durable = max(self.outbox.durable, position)
        self.lease.proved(queued_at)
        self._ports.watch.durable(self, trio.current_time() - queued_at)
        self._move()
        if self._stopping is not None or self.state.phase is Phase.CLOSED:
            self._mailbox.nudge()

    def fail(self, error: StoreError) -> None:
        """The log is not what this memory thinks: discard it. Nothing more is written to the socket but its close."""
        if self.failure is not None:
            return
        self.failure = f"{type(error).__name__}: {error}"
        self._end()
        self.outbox.revoke()
        if self._attachment is not None:
            self._attachment.halt(RESUME_ELSEWHERE, "resume")
        self._move()
        self._mailbox.nudge()

    def _end(self) -> None:
        """Take nothing more, and leave no lane behind for nobody."""
        if not self._ended:
            self._ended = True
            self._send(fx.CloseSession(self.session_id))

    # -- effects -----------------------------------------------------------------------------------------------

    def _perform_fences(self, effects: tuple[fx.Effect, ...], records: tuple[e.Record, ...]) -> None:
        for effect in effects:
            if isinstance(effect, fx.FenceOutput):
                self.outbox.cut(effect.epoch, effect.cursor, records[-1].position)

    def _perform(self, effect: fx.Effect) -> None:
        match effect:
            case fx.FenceOutput():
                pass  # done first, before the new frames came in
            case fx.CloseSocket():
                if self._attachment is not None:
                    self._attachment.close_after = self.state.position
                    self._attachment.stop = (effect.code, effect.reason)
            case fx.EndSession():
                self._ended = True
            case fx.FeedAudio():
                audio = self._input_bodies.get(effect.digest)
                if audio is not None:
                    self._send(rt.Feed(effect.session, effect.epoch, effect.start_ms, effect.audio_ms, audio))
            case fx.ConfigureSession():
                self._pacer.lead_ms = self.state.config.max_client_lead_ms
                self._pacer.lane_lead_ms = self.state.config.max_lane_lead_ms
                self._send(effect)
            case _:
                self._send(effect)

    def _send(self, message: rt.ToRuntime) -> None:
        try:
            self._ports.runtime.send(message)
        except rt.RuntimeBusy:
            match message:  # the worker does not keep up
                case rt.Feed():  # its ear hears a gap
                    self._ports.watch.input_lost(self)
                case rt.Respond():  # it fails at once, so that nobody waits for it
                    failed = rt.LaneFailed(message.session, message.epoch, message.response_id, "runtime_busy", "")
                    self.take_message(failed)
                case _:  # without this word the worker's session is not the log's: begin again from that
                    self.stop(RESUME_ELSEWHERE, "overloaded")

    # -- model output, paced -----------------------------------------------------------------------------------

    def _pace(self, message: rt.Produced | rt.LaneEnded | rt.LaneFailed) -> None:
        active = self.state.active
        if active is None or message.epoch != self.state.epoch or message.response_id != active.response_id:
            self._step(*command_from(message))  # stale: the machine drops it and it is counted
            return
        self._pacer.put(message)
        self._release_paced()

    def _paced_due_ns(self) -> int | None:
        active = self.state.active
        sent = self.outbox.sent.get(active.response_id) if active else None
        return self._pacer.due_ns(sent)

    def _release_paced(self) -> None:
        while not self._ended and (due := self._paced_due_ns()) is not None and due <= self.now_ns():
            self._step(*command_from(self._pacer.take()))
        word = self._pacer.lane_word(self._undelivered_ms())
        if word is not None:
            self._send(word(self.session_id, self.state.epoch))

    def _undelivered_ms(self) -> int:
        active = self.state.active
        if active is None:
            return 0
        sent = self.outbox.sent.get(active.response_id)
        return active.produced_ms - (sent.sent_ms if sent else active.sent_ms)

    def _check_bounds(self) -> None:
        if self._outputs_lost:
            self._outputs_lost = False
            self._step(c.FailOutput("mailbox_overflow"))
        if self._attachment is None or not self.outbox.overfull or self.outbox.fence > self.outbox.durable:
            return
        if not self._step(c.FailOutput("output_backpressure")) and self.outbox.overfull:
            self._attachment.halt(1008, "slow_reader")
            self._move()

    # -- attachments -------------------------------------------------------------------------------------------

    def _switch_to(self, attachment: Attachment) -> None:
        number, head = attachment.number, self.outbox.head
        if number is not None and not self.outbox.knows(number):
            attachment.end(RESUME_ELSEWHERE, "resume")  # it was let go meanwhile: the next attempt is told so
            return
        self._replace(self._attachment)
        sent = self.outbox.resent(number, self.now_ns()) if number is not None else ()
        records = self._step(c.Attach(attachment.token_hash, number, sent))
        if not records or self._ended:
            attachment.end(RESUME_ELSEWHERE, "resume")
            return
        attachment.generation = self.state.attachment.generation
        credentials = Credentials(self.session_id, attachment.generation, attachment.resume_token)
        if number is None:
            opening = self.projection.greeting(self.state, credentials)
        else:
            resumption = Resumption(self.outbox.skipped(number), self.state.input.now_ms, self.state.last_event_id)
            opening = [self.projection.resumed(self.state, credentials, resumption)]
        # A fresh client begins where the stream was, and so gets what its attachment itself adds.
        self.outbox.attach(attachment.generation, head if number is None else number, opening, records[-1].position)
        self._attachment = attachment
        assert self._nursery is not None
        self._nursery.start_soon(run_sender, self, attachment, self._sender_gone)
        self._move()
        self._gain_runtime()  # a session read back from its log asks for a lane only now: attached comes before a bump

    def _replace(self, old: Attachment | None) -> None:
        if old is not None:
            self._attachment = None
            old.halt(1000, "session_replaced")
            self._move()

    def _sender_gone(self, attachment: Attachment, reason: str) -> None:
        if not self._ended:
            self._post_or_fail(Left(attachment, reason))

    def _leave(self, attachment: Attachment, reason: str) -> None:
        if attachment is self._attachment:
            self._attachment = None
            self._step(c.Detach(attachment.generation, reason))

    def _drop_attachments(self) -> None:
        """Nobody may wait for ever for a socket of ours, nor for an attachment that was never taken up."""
        attachment, self._attachment = self._attachment, None
        if attachment is not None:
            attachment.end(RESUME_ELSEWHERE, "resume")
        while (entry := self._mailbox.take()) is not None:
            if isinstance(entry, Attachment):
                entry.end(RESUME_ELSEWHERE, "resume")

    async def _settle_socket(self) -> None:
        """Let the last sender finish: a closing session still says so to its client."""
        attachment = self._attachment
        if attachment is None:
            return
        attachment.stop = attachment.stop or (1000, "closed")
        self._move()
        with trio.move_on_after(5):
            await attachment.closed.wait()

    def _stop_now(self, code: int, reason: str) -> None:
        if self._attachment is not None:
            attachment = self._attachment
            self._leave(attachment, reason)
            attachment.halt(code, reason)
            self._attachment = attachment
        if self.outbox.durable >= self.state.position:
            self._end()

    def _gain_runtime(self) -> None:
        capabilities = self._ports.runtime.capabilities
        if capabilities is not None and not self.state.runtime_up and not self._ended:
            self._step(c.GainRuntime(capabilities.lane_tokens_max))

    # -- small things ------------------------------------------------------------------------------------------

    def _post_or_fail(self, entry: Entry) -> None:
        try:
            self._mailbox.post(entry)
        except MailboxFull:
            self.stop(RESUME_ELSEWHERE, "overloaded")

    def keep_input(self, bodies: Mapping[str, bytes]) -> None:
        """Pending input as read back from the store, for a new ear to hear."""
        self._input_bodies.keep(bodies)

    def _move(self) -> None:
        self._moved.set()
        self._moved = trio.Event()
