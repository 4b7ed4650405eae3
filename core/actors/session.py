"""The session actor: one task, one mailbox, the only writer of its log.

Each step takes one thing from the mailbox, lets the machine decide and fold, queues the batch for the store, projects the
frames, and carries out the effects, all without an await. What a client may see waits in the outbox until its record is
durable; feeding the model does not wait. If an append fails, this object and its memory are thrown away.

The actor's parts, each a small object of its own: the mailbox (what is to be decided), the journal (the way to the log),
the line (the way to the runtime), the playout (model output that is early), the outbox (the stream) and the door (who
holds it).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

import trio
from trio.lowlevel import ParkingLot

from core.actors.alarm import Alarm
from core.actors.attachment import Attachment
from core.actors.crashes import log_loss
from core.actors.door import RESUME_ELSEWHERE, Door
from core.actors.entries import Entry, Left, Posted
from core.actors.input_bodies import InputBodies
from core.actors.journal import Journal
from core.actors.lease import Lease, renew
from core.actors.line import RETRY_S, Fate, RuntimeLine
from core.actors.mailbox import Mailbox, MailboxFull
from core.actors.outbox import AsidesFull, Outbox
from core.actors.pacer import Pacer
from core.actors.playout import Playout
from core.actors.ports import Ports as Ports
from core.actors.ports import Watch as Watch
from core.actors.translate import command_from, gain, part_of
from core.actors.weight import weight
from core.ports import runtime as rt
from core.ports.projection import Frame, Projection
from core.ports.store import Body, StoreError, TermRefused
from core.session import commands as c
from core.session import effects as fx
from core.session import events as e
from core.session.machine import step
from core.session.state import Phase, SessionState
from core.session.time_units import NS_PER_S


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
        self._journal = Journal(self, ports)
        self.line = RuntimeLine(ports.runtime)
        self._clock_base_ns = max(ports.now_ns(), state.at_ns) - round(trio.current_time() * NS_PER_S)
        self._fresh = fresh
        self._mailbox: Mailbox[Entry] = Mailbox()
        self._posted_bytes = 0
        pacer = Pacer(state.config.max_client_lead_ms, state.config.max_lane_lead_ms)
        self._playout = Playout(self, pacer, ports.silent_s)
        self._input_bodies = InputBodies()
        self._door = Door(self)
        self._alarm = Alarm()
        self._nursery: trio.Nursery | None = None
        self._sender, self._watchers = ParkingLot(), ParkingLot()
        self._ended = False
        self._stopping: tuple[int, str] | None = None

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self.state.session_id

    @property
    def attachment(self) -> Attachment | None:
        """Who holds the stream now."""
        return self._door.holder

    @property
    def ended(self) -> bool:
        """The actor takes nothing more; the log is the session."""
        return self._ended

    @property
    def unwritten_bytes(self) -> int:
        """What clients sent that is not in the log yet: who sends more should wait, or it fills the store's queue for all.
        Of the model's words they need not wait for any."""
        return self._posted_bytes + self._journal.unwritten_bytes

    def now_ns(self) -> int:
        """The log's clock: the wall clock as it was when the actor began, carried on by the monotonic one. So a wall clock
        that is set while the session lives makes no deadline fire and no audio wait."""
        return max(self._clock_base_ns + round(trio.current_time() * NS_PER_S), self.state.at_ns)

    # -- what others may ask; none of it waits -----------------------------------------------------------------

    def post(self, command: c.Command, bodies: tuple[Body, ...] = ()) -> None:
        """Queue a command with the bodies that it names. Raises MailboxFull, SessionGone."""
        if self._ended:
            raise SessionGone(self.session_id)
        size_bytes = weight((command, bodies))
        self._mailbox.post(Posted(command, bodies, size_bytes), size_bytes)
        self._posted_bytes += size_bytes

    def attach(self, attachment: Attachment) -> None:
        """Give the stream to ``attachment``, once what was posted before is decided. Raises MailboxFull, SessionGone."""
        if self._ended:
            raise SessionGone(self.session_id)
        self._mailbox.post(attachment)

    def detach(self, attachment: Attachment, reason: str) -> None:
        """The peer of ``attachment`` is gone. Safe to call at any time, also twice."""
        attachment.halt(*(attachment.stop or (1000, reason)))
        self.move()
        self.sender_gone(attachment, reason)

    def answer(self, attachment: Attachment, payload: Mapping[str, Any]) -> None:
        """A transport-level answer: unnumbered, not in the log. A client that asks and never reads is dropped."""
        if attachment is not self.attachment:
            return
        try:
            self.outbox.answer(payload)
        except AsidesFull:
            attachment.halt(1008, "slow_reader")
        self.move()

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

    @property
    def busy(self) -> bool:
        """An answer is being made, or its client has yet to be handed something: an answer's end is decided before it is
        durable, and written after that."""
        waits = self.attachment is not None and self.outbox.waiting_frames > 0
        return self.state.active is not None or waits

    def stop(self, code: int, reason: str) -> None:
        """End the actor, not the session: close the socket so that the client resumes elsewhere."""
        self._stopping = (code, reason)
        self._mailbox.nudge()

    def take_message(self, message: rt.FromRuntime) -> None:
        """The runtime's sink."""
        if self._ended:
            return
        try:
            self._mailbox.post(message, weight(message))
        except MailboxFull:
            if isinstance(message, rt.Produced | rt.ToolCalled):
                self._playout.output_lost = True  # noted at the next turn: that answer fails, the session lives
                self._mailbox.nudge()
            else:  # a word that the session cannot do without: begin again from the log
                self.stop(RESUME_ELSEWHERE, "overloaded")

    async def changed(self) -> None:
        """Wait until something was decided, or somebody came or left."""
        await self._watchers.park()

    # -- what the sender asks ----------------------------------------------------------------------------------

    async def stream_moved(self) -> None:
        """Wait until the stream may have something to write."""
        await self._sender.park()

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
        if self._playout.pacer.queue or self._playout.pacer.paused:
            self._mailbox.nudge()

    def sender_gone(self, attachment: Attachment, reason: str) -> None:
        """The sender has ended, or the peer has gone."""
        if not self._ended:
            self._post_or_fail(Left(attachment, reason))

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
                await self._live()
                await self._door.settle()
                nursery.cancel_scope.cancel()
        finally:
            self._end()
            runtime.unsubscribe(self.session_id, self.take_message)
            self._nursery = None
            self._drop_attachments()

    async def _live(self) -> None:
        """Turn after turn, as things come in or fall due. One alarm serves many turns: it is only ever set earlier, and one
        that has become too early costs an idle turn, where a scope around each wait cost as much as a step of the machine."""
        while not self._ended:
            with trio.CancelScope(deadline=self._due_at()) as alarm:
                while not self._ended:
                    await self._mailbox.wait()
                    self._turn()
                    due_at = self._due_at()
                    if due_at < alarm.deadline:
                        alarm.deadline = due_at
            if alarm.cancelled_caught:
                self._turn()

    def _turn(self) -> None:
        while not self._ended and (entry := self._mailbox.take()) is not None:
            self._dispatch(entry)
        if self._ended:
            return
        self.line.settle()
        self._playout.release()
        self._playout.check_bounds()
        if self._alarm.rings(self.state, self.now_ns()):
            self.step(c.FireDeadline())
        if self._stopping is not None:
            self._stop_now(*self._stopping)

    def _due_at(self) -> float:
        """When there is something to do even if nothing comes in, on trio's clock; inf: never."""
        deadline_ns, paced_ns = self._alarm.set(self.state, self.now_ns()), self._playout.due_ns()
        due_ns = inf if deadline_ns is None else deadline_ns
        if paced_ns is not None and paced_ns < due_ns:
            due_ns = paced_ns
        due_at = (due_ns - self._clock_base_ns) / NS_PER_S
        return min(due_at, trio.current_time() + RETRY_S) if self.line.owes else due_at

    def _dispatch(self, entry: Entry) -> None:
        match entry:
            case Posted():
                self._posted_bytes -= entry.size_bytes
                self.step(entry.command, entry.bodies)
            case Attachment():
                assert self._nursery is not None
                self._door.let_in(entry, self._nursery)
                if self.attachment is entry:
                    self._gain_runtime()  # only now, after a resume: attached comes before a bump
            case Left():
                self._door.leave(entry.attachment, entry.reason)
            case rt.Produced() | rt.ToolCalled() | rt.LaneEnded() | rt.LaneFailed():
                self._playout.put(entry)
            case rt.RuntimeReady() if self.state.runtime_up:
                pass
            case rt.RuntimeLost():
                self.line.forget()
                self.step(*command_from(entry))
            case _:
                self.step(*command_from(entry))

    # -- one step, without an await ----------------------------------------------------------------------------

    def step(self, command: c.Command, bodies: tuple[Body, ...] = ()) -> tuple[e.Record, ...]:
        """Let the machine decide, and do what follows from it; the records. For the actor's own parts only."""
        frames: list[Frame] = []
        fold = self.projection.fold

        def project(record: e.Record, state: SessionState) -> None:
            frames.extend(fold(record, state))

        result = step(self.state, command, self.now_ns(), self.outbox.cursor(), project)
        if not result.records:
            if isinstance(command, c.ModelOutput | c.ModelCall):
                self._ports.watch.stale_output(self)
            return ()
        named = {body.digest: body.data for body in bodies}
        self._journal.write(result, frames, named)
        self._playout.follow(result.records)
        self._perform_fences(result.effects, result.records)
        self.outbox.extend(frames, result.records[-1].at_ns, named)
        if isinstance(command, c.AppendAudio | c.AppendPart | c.CreateItem) and result.refusal is None:
            self._input_bodies.keep(named)
        for effect in result.effects:
            self._perform(effect)
        self._input_bodies.let_go(self.state)
        self._ports.watch.stepped(self, result.records)
        # Not the sender: nothing of this may be written before it is durable, and then the journal says so.
        if self._watchers:
            self._watchers.unpark_all()
        return result.records

    def became_durable(self) -> None:
        """The journal says so of a batch."""
        ending = self._stopping is not None or self.state.phase is Phase.CLOSED
        if ending:
            self._mailbox.nudge()
        if ending or self.outbox.ready or (self.attachment is not None and self.attachment.stop is not None):
            self.move()

    def fail(self, error: StoreError) -> None:
        """The log is not what this memory thinks: discard it. Nothing more is written to the socket but its close."""
        if self.failure is not None:
            return
        self.failure = f"{type(error).__name__}: {error}"
        log_loss(self.session_id, error)
        self._end()
        self.outbox.revoke()
        if self.attachment is not None:
            self.attachment.halt(RESUME_ELSEWHERE, "resume")
        self.move()
        self._mailbox.nudge()

    def _end(self) -> None:
        """Take nothing more, and leave no lane behind for nobody."""
        if not self._ended:
            self._ended = True
            self.line.close(self.session_id)

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
                self._door.close_after(self.state.position, effect.code, effect.reason)
            case fx.CloseSession():
                self.line.close(effect.session)
            case fx.EndSession():
                self._ended = True
            case fx.FeedAudio():
                audio = self._input_bodies.get(effect.digest)
                if audio is not None:
                    self.tell_runtime(rt.Feed(effect.session, effect.epoch, effect.start_ms, effect.audio_ms, audio))
            case fx.FeedPart():
                data = self._input_bodies.get(effect.digest) if effect.digest else b""
                if data is not None:
                    self.tell_runtime(part_of(effect, data))
            case fx.ConfigureSession():
                self._playout.configure(self.state.config)
                self.tell_runtime(effect)
            case _:
                self.tell_runtime(effect)

    def tell_runtime(self, message: rt.ToRuntime) -> None:
        """A word for the runtime; what becomes of one that its full queue refuses, line.py says."""
        match self.line.tell(message):
            case Fate.LOST if isinstance(message, rt.Respond):
                self.take_message(
                    rt.LaneFailed(message.session, message.epoch, message.response_id, "runtime_busy", "")
                )
            case Fate.LOST:
                self._ports.watch.input_lost(self)
            case Fate.REFUSED:  # the worker's session is not the log's any more: begin again from that
                self.stop(RESUME_ELSEWHERE, "overloaded")

    def _gain_runtime(self) -> None:
        capabilities = self._ports.runtime.capabilities_of(self.session_id)
        if capabilities is not None and not self.state.runtime_up and not self._ended:
            self.step(gain(capabilities))

    # -- the end -----------------------------------------------------------------------------------------------

    def _stop_now(self, code: int, reason: str) -> None:
        self._door.send_away(code, reason)
        if self.outbox.durable >= self.state.position:
            self._end()

    def _drop_attachments(self) -> None:
        """Nobody may wait for ever for an attachment that was never taken up. (Of others the sender has seen to it.)"""
        while (entry := self._mailbox.take()) is not None:
            if isinstance(entry, Attachment):
                entry.end(RESUME_ELSEWHERE, "resume")

    # -- small things ------------------------------------------------------------------------------------------

    def _post_or_fail(self, entry: Entry) -> None:
        try:
            self._mailbox.post(entry)
        except MailboxFull:
            self.stop(RESUME_ELSEWHERE, "overloaded")

    def keep_input(self, bodies: Mapping[str, bytes]) -> None:
        """Pending input as read back from the store, for a new ear to hear."""
        self._input_bodies.keep(bodies)

    def move(self) -> None:
        """The sender looks again, and whoever waits for a change."""
        for lot in (self._sender, self._watchers):
            if lot:
                lot.unpark_all()
