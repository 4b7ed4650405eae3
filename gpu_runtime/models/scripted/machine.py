"""The scripted model as a step machine: many sessions, each with an ear and at most one lane, on one heap of instants.

A lane answers its Respond messages one after another. The fence is the session's ``floor``: the lowest epoch that is
still alive. Opening a lane and aborting one only ever raise it, and whatever is below is neither heard nor said.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence

import attrs

from core.ports.runtime import (
    AbortLane,
    Capabilities,
    ClearTurn,
    CloseSession,
    CommitTurn,
    ConfigureSession,
    Feed,
    FromRuntime,
    Heard,
    LaneEnded,
    LaneFailed,
    ModelStatistics,
    OpenLane,
    OpenSession,
    Part,
    PauseLane,
    Respond,
    ResumeLane,
    ToolCalled,
    ToRuntime,
    TruncateLane,
    WantsToSpeak,
)
from core.session.config import IMAGE, REFERENCE_AUDIO
from core.session.time_units import NS_PER_MS
from gpu_runtime.models.scripted.answer import Answer, Known, plan, unit
from gpu_runtime.models.scripted.ear import Ear
from gpu_runtime.models.scripted.settings import ScriptedSettings
from gpu_runtime.stepped import Fault, Said

ANSWERS_QUEUED_MAX = 16
"""Respond messages that may wait in a lane; one more fails with ``lane_busy``."""
RESPONSES_KNOWN_MAX = 64
IMAGES_KNOWN_MAX = 512
SAID_AT_ONCE_MAX = 32


@attrs.define
class _Lane:
    """The answer lane of one epoch. ``unit`` and ``chars`` say how far the first answer of ``answers`` has come."""

    epoch: int
    asked: deque[str] = attrs.field(factory=lambda: deque(maxlen=RESPONSES_KNOWN_MAX))
    """The latest response ids: a Respond that comes twice is answered once."""
    answers: deque[Answer] = attrs.field(factory=deque)
    unit: int = 0
    chars: int = 0
    called: bool = False
    """The first answer has asked for its function."""
    paused: bool = False
    due_ns: int | None = None
    """When the next unit is ready; None: it became ready while the lane was paused, or nothing is asked."""


@attrs.define(eq=False)
class _Session:
    """What the model knows of one session."""

    name: str
    ear: Ear
    opened: OpenSession | ConfigureSession
    images: dict[str, None] = attrs.field(factory=dict)
    """Digests of the images that it was fed, the newest IMAGES_KNOWN_MAX."""
    voice: str = ""
    calls: int = 0
    floor: int = 0
    responses: int = 0
    lane: _Lane | None = None
    ear_timer_ns: int | None = None


_Action = Callable[[int], Sequence[Said]]


class ScriptedMachine:
    """See the package's docstring for what it answers. ``wall_ns`` is added to the shell's clock in timings."""

    def __init__(self, settings: ScriptedSettings, wall_ns: int = 0) -> None:
        self._settings = settings
        self._wall_ns = wall_ns
        self._sessions: dict[str, _Session] = {}
        self._timers: list[tuple[int, int, _Action]] = []
        self._timers_made = 0
        self._units_said = 0
        self._answers_failed = 0
        self._capabilities = Capabilities(
            model="scripted",
            unit_ms=settings.unit_ms,
            output_rate=settings.output_rate,
            sessions_max=settings.sessions_max,
            voices=("tone",),
            inputs=tuple(settings.inputs.split(",")),
            can_truncate=settings.can_truncate,
            tool_calls=settings.tool_calls,
        )

    @property
    def capabilities(self) -> Capabilities:
        """From the settings."""
        return self._capabilities

    def statistics(self) -> ModelStatistics:
        """Answers stand for the units that run or wait, since nothing here takes time but by the script."""
        lanes = [session.lane for session in self._sessions.values() if session.lane is not None]
        answering = sum(1 for lane in lanes if lane.answers)
        return ModelStatistics(
            lanes_open=len(lanes),
            units_waiting=sum(len(lane.answers) for lane in lanes) - answering,
            units_running=answering,
            units_done=self._units_said,
            lanes_failed=self._answers_failed,
        )

    def due_ns(self) -> int | None:
        """The next instant at which there may be something to say."""
        return self._timers[0][0] if self._timers else None

    def tick(self, now_ns: int) -> list[Said]:
        """Do what is due, in order of time and then of asking; what is too much at once stays due."""
        said: list[Said] = []
        while self._timers and self._timers[0][0] <= now_ns and len(said) < SAID_AT_ONCE_MAX:
            _, _, action = heapq.heappop(self._timers)
            said += action(now_ns)
        return said

    def handle(self, message: ToRuntime, now_ns: int) -> Sequence[Said]:
        """Take a message. Unknown sessions and lanes of the past are ignored."""
        if isinstance(message, OpenSession):
            ear = Ear(message, self._settings, self._wall_ns)
            self._sessions[message.session] = _Session(message.session, ear, message)
            return ()
        session = self._sessions.get(message.session)
        if session is None:
            return ()
        match message:
            case Feed():
                return self._feed(session, message, now_ns)
            case Part():
                _show(session, message)
            case CommitTurn():
                return self._commit(session, message, now_ns)
            case Respond():
                return self._respond(session, message, now_ns)
            case AbortLane():
                self._abort(session, message, now_ns)
            case OpenLane(epoch=epoch):
                if epoch >= session.floor and (session.lane is None or session.lane.epoch != epoch):
                    session.floor, session.lane = epoch, _Lane(epoch)
                    self._speak_up(session, session.lane, now_ns)
            case PauseLane(epoch=epoch):
                if session.lane is not None and session.lane.epoch == epoch:
                    session.lane.paused = True
            case ResumeLane(epoch=epoch):
                self._resume(session, message, now_ns)
            case ConfigureSession():
                session.opened = message
                session.ear.configure(message)
            case ClearTurn():
                session.ear.clear()
            case TruncateLane():
                pass  # every Respond brings the whole history
            case CloseSession():
                del self._sessions[message.session]
        return ()

    # --- the ear ---------------------------------------------------------------------------------------------------

    def _feed(self, session: _Session, message: Feed, now_ns: int) -> list[FromRuntime]:
        said = session.ear.feed(message, now_ns)
        self._watch_ear(session)
        return said

    def _watch_ear(self, session: _Session) -> None:
        """Set a timer if none stands, or if silence that was sent has brought the end nearer. One that fires too early,
        because more audio came, sets the next."""
        due_ns = session.ear.idle_due_ns()
        if due_ns is None or (session.ear_timer_ns is not None and session.ear_timer_ns <= due_ns):
            return
        session.ear_timer_ns = due_ns

        def fire(now_ns: int) -> Sequence[Said]:
            if not self._alive(session) or session.ear_timer_ns != due_ns:
                return ()
            session.ear_timer_ns = None
            said = session.ear.idle(now_ns)
            self._watch_ear(session)
            return said

        self._at(due_ns, fire)

    def _commit(self, session: _Session, message: CommitTurn, now_ns: int) -> Sequence[Said]:
        text = session.ear.commit(message)
        if message.segment is not None:
            return ()
        heard = Heard(message.session, message.item_id, text)
        if self._settings.hear_ms == 0:
            return (heard,)
        self._at(now_ns + self._settings.hear_ms * NS_PER_MS, lambda _: (heard,) if self._alive(session) else ())
        return ()

    # --- the lane --------------------------------------------------------------------------------------------------

    def _respond(self, session: _Session, message: Respond, now_ns: int) -> Sequence[Said]:
        if message.epoch < session.floor:
            return ()
        lane = session.lane
        if lane is None or lane.epoch != message.epoch:
            return (_failed(message, "lane_unknown", f"no lane of epoch {message.epoch} was opened"),)
        if len(lane.answers) >= ANSWERS_QUEUED_MAX:
            return (_failed(message, "lane_busy", f"{ANSWERS_QUEUED_MAX} answers are waiting in this lane"),)
        if message.response_id in lane.asked:
            return ()
        lane.asked.append(message.response_id)
        session.responses += 1
        lane.answers.append(plan(message, _known(session, message), session.responses, self._settings))
        if len(lane.answers) == 1:
            self._begin(session, lane, now_ns)
        return ()

    def _speak_up(self, session: _Session, lane: _Lane, now_ns: int) -> None:
        if self._settings.speaks_up_ms < 0:
            return

        def wish(_: int) -> Sequence[Said]:
            there = self._alive(session) and session.lane is lane and not lane.answers
            return (WantsToSpeak(session.name, lane.epoch),) if there else ()

        self._at(now_ns + self._settings.speaks_up_ms * NS_PER_MS, wish)

    def _begin(self, session: _Session, lane: _Lane, now_ns: int) -> None:
        lane.unit = lane.chars = 0
        lane.called = False
        self._next_unit_at(session, lane, now_ns + self._settings.first_audio_ms * NS_PER_MS)

    def _next_unit_at(self, session: _Session, lane: _Lane, at_ns: int) -> None:
        """Invariant: a lane that is not paused and has something to answer has exactly one timer."""
        lane.due_ns = at_ns
        self._at(at_ns, lambda now_ns: self._speak(session, lane, now_ns))

    def _speak(self, session: _Session, lane: _Lane, now_ns: int) -> Sequence[Said]:
        if not self._alive(session) or session.lane is not lane or lane.due_ns is None:
            return ()
        due_ns = lane.due_ns
        if lane.paused:
            lane.due_ns = None
            return ()
        answer = lane.answers[0]
        if lane.unit == self._settings.silent_at_unit and self._settings.fault_epoch in (-1, lane.epoch):
            lane.due_ns = None
            return ()
        fault = self._fault(session, lane)
        if isinstance(fault, Fault):
            lane.due_ns = None
            return (fault,)
        if fault is not None:
            self._answers_failed += 1
            self._finish(session, lane, now_ns)
            return (fault,)
        called = _call(session, lane, answer)
        said, lane.chars = unit(session.name, answer, lane.unit, lane.chars, now_ns + self._wall_ns, self._settings)
        lane.unit += 1
        self._units_said += 1
        if said.kind == "listen" and lane.chars:
            self._finish(session, lane, now_ns)
            return (*called, said)
        if lane.unit < answer.units:
            self._next_unit_at(session, lane, due_ns + int(self._settings.unit_ms * self._settings.rtf * NS_PER_MS))
            return (*called, said)
        called_last = () if called else _call(session, lane, answer)
        ended = LaneEnded(
            session.name, lane.epoch, answer.response_id, answer.reason, answer.input_tokens, answer.output_tokens
        )
        self._finish(session, lane, now_ns)
        return (*called, said, *called_last, ended)

    def _finish(self, session: _Session, lane: _Lane, now_ns: int) -> None:
        """The first answer is over, go on to the next."""
        lane.answers.popleft()
        lane.due_ns = None
        if lane.answers:
            self._begin(session, lane, now_ns)

    def _fault(self, session: _Session, lane: _Lane) -> Fault | LaneFailed | None:
        """What the settings want to go wrong at this unit."""
        settings = self._settings
        if settings.fault_epoch not in (-1, lane.epoch):
            return None
        if lane.unit == settings.die_at_unit:
            return Fault.DIE
        if lane.unit == settings.stall_at_unit:
            return Fault.STALL
        if lane.unit == settings.fail_at_unit:
            response_id = lane.answers[0].response_id
            return LaneFailed(session.name, lane.epoch, response_id, "model_error", "the script has it fail here")
        return None

    def _abort(self, session: _Session, message: AbortLane, now_ns: int) -> None:
        session.floor = max(session.floor, message.epoch + 1)
        lane = session.lane
        if lane is None or lane.epoch >= session.floor:
            return
        session.lane = None
        if self._settings.late_after_abort_ms < 0 or not lane.answers:
            return
        answer, number, chars = lane.answers[0], lane.unit, lane.chars

        def say_late(at_ns: int) -> Sequence[Said]:
            if not self._alive(session):
                return ()
            return (unit(session.name, answer, number, chars, at_ns + self._wall_ns, self._settings)[0],)

        self._at(now_ns + self._settings.late_after_abort_ms * NS_PER_MS, say_late)

    def _resume(self, session: _Session, message: ResumeLane, now_ns: int) -> None:
        lane = session.lane
        if lane is None or lane.epoch != message.epoch or not lane.paused:
            return
        lane.paused = False
        if lane.answers and lane.due_ns is None:
            self._next_unit_at(session, lane, now_ns)

    # --- time ------------------------------------------------------------------------------------------------------

    def _at(self, at_ns: int, action: _Action) -> None:
        self._timers_made += 1
        heapq.heappush(self._timers, (at_ns, self._timers_made, action))

    def _alive(self, session: _Session) -> bool:
        """False for a session that was closed or opened anew since."""
        return self._sessions.get(session.name) is session


def _show(session: _Session, message: Part) -> None:
    if message.kind == IMAGE:
        session.images[message.digest] = None
        if len(session.images) > IMAGES_KNOWN_MAX:
            del session.images[next(iter(session.images))]
    elif message.kind == REFERENCE_AUDIO:
        session.voice = message.digest


def _known(session: _Session, message: Respond) -> Known:
    opened = session.opened
    texts = (session.ear.transcript(turn.item_id) if turn.text is None else turn.text for turn in message.history)
    tools = opened.tools if message.tools is None else message.tools
    choice = opened.tool_choice if message.tool_choice is None else message.tool_choice
    names = tuple(tool.name for tool in tools)
    return Known(tuple(texts), frozenset(session.images), session.voice, names, choice)


def _call(session: _Session, lane: _Lane, answer: Answer) -> tuple[ToolCalled, ...]:
    """The answer's function call, when its unit has come and it was not made yet."""
    call = answer.call
    if call is None or lane.called or lane.unit < min(call.at_unit, answer.units):
        return ()
    lane.called = True
    session.calls += 1
    call_id = f"call-{session.calls}"
    return (ToolCalled(session.name, lane.epoch, answer.response_id, call_id, call.name, call.arguments),)


def _failed(message: Respond, code: str, text: str) -> LaneFailed:
    return LaneFailed(message.session, message.epoch, message.response_id, code, text)
