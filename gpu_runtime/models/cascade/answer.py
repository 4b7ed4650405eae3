"""One answer on its way: a prompt becomes text, text becomes pieces, pieces become units of audio.

An answer may be begun on trial, before anybody asked for it: then it stays with its maker, held back after its first
piece, until it is ``adopted`` by a Respond or cancelled. Nothing of an answer is emitted once it was cancelled: the check
and the emission are one step under the session's lock.
"""

from __future__ import annotations

import threading
import time
from collections import deque

import attrs

from core.ports.runtime import LaneEnded, LaneFailed, Produced, ToolCalled
from gpu_runtime.models.cascade.clauses import ClauseSplitter
from gpu_runtime.models.cascade.meter import Meter
from gpu_runtime.models.cascade.parts import (
    SPEAKING_RATE,
    CallingModel,
    Cancel,
    Cancelled,
    ChatCall,
    ChatMessage,
    LanguageModel,
    PartFailed,
    Tooling,
    Usage,
    Voice,
)
from gpu_runtime.models.cascade.settings import Settings
from gpu_runtime.models.cascade.stage import Stage, StageFull, Urgency
from gpu_runtime.models.cascade.units import Unit, UnitCutter
from gpu_runtime.plugin import Emit

TOKENS_MAX = 4_096
"""The longest answer a client can ask for; it also bounds the pieces that wait for the voice."""

TRIAL_S = 1.0
"""How long an answer on trial is worked on after the turn is over."""

NOTHING_TO_SAY = "Sorry, I have no answer to that."
"""When the model gives no text at all: silence would look like a fault."""


@attrs.frozen
class Workshop:
    """What all answers share."""

    model: LanguageModel
    voice: Voice
    thinking: Stage
    speaking: Stage
    settings: Settings
    emit: Emit
    meter: Meter


@attrs.frozen
class Order:
    """What to answer. Two equal orders give the same answer. ``prompt`` empty: ``say`` is spoken as it is."""

    prompt: tuple[ChatMessage, ...]
    spoken: bool
    max_tokens: int | None
    say: str = ""
    tooling: Tooling | None = None
    """None: it calls no functions."""


@attrs.frozen
class Lane:
    """For whom an answer is."""

    epoch: int
    response_id: str


@attrs.frozen
class _Piece:
    text: str
    ready_ns: int


class Answer:
    """See the module. Methods are called with the session's lock held, but for those that run in a stage."""

    def __init__(self, shop: Workshop, session: str, order: Order, lock: threading.RLock) -> None:
        self.order = order
        self.cancel = Cancel()
        self.lane: Lane | None = None
        self.paused = False
        self.finished = False
        self.first_emitted_s: float | None = None
        self.trial_until_s: float | None = None
        """Monotonic; an answer that nobody adopted by then gives up."""
        self._shop = shop
        self._session = session
        self._lock = lock
        self._splitter = ClauseSplitter(shop.settings.first_piece_words)
        self._cutter = UnitCutter(shop.settings.unit_ms)
        self._pieces: deque[_Piece] = deque()
        self._held: list[tuple[Unit, tuple[tuple[str, int], ...]]] = []
        self._units = 0
        self._asked_ns = 0
        """By the meter's clock."""
        self._first_token_ns = 0
        self._usage: Usage | None = None
        self._calls: list[ChatCall] = []
        """What it asks for, told when all of it was spoken."""
        self._speaking = False

    @property
    def text(self) -> str:
        """All that was spoken so far."""
        return self._cutter.text

    @property
    def audio_ms(self) -> int:
        """All that was spoken so far."""
        return self._cutter.audio_ms

    def start(self, urgency: Urgency) -> None:
        """Begin to think."""
        self._asked_ns = self._shop.meter.clock_ns()
        try:
            self._shop.thinking.submit(self._session, self._think, self.cancel, urgency)
        except StageFull:
            self._fail("busy", "too many answers wait for the language model")

    def adopt(self, lane: Lane) -> None:
        """Somebody asked for it: what is held goes out, and it goes on."""
        self.lane = lane
        for stage in (self._shop.thinking, self._shop.speaking):
            stage.promote(self._session, self.cancel)
        for unit, timings in self._held:
            self._emit(unit, timings)
        self._held.clear()
        self._go_on()

    def pause(self, paused: bool) -> None:
        """Stop after the piece that is being spoken, or go on."""
        self.paused = paused
        self._go_on()

    # --- thinking ---------------------------------------------------------------------------------------------------

    def _think(self) -> None:
        limit = self.order.max_tokens
        self._shop.meter.began(self._asked_ns)
        try:
            usage = self._generate(min(limit or self._shop.settings.max_tokens, TOKENS_MAX))
        except PartFailed as failure:
            with self._lock:
                self._fail(failure.code, str(failure))
            return
        self._shop.meter.thought(self._asked_ns, usage)
        with self._lock:
            for piece in self._splitter.finish(drop_unfinished=usage.truncated and limit is None):
                self._queue(piece)
            silent = not (self._pieces or self._units or self._held or self._speaking)
            if silent and not self._calls:
                self._queue(NOTHING_TO_SAY)
            self._usage = usage
            self._go_on()

    def _generate(self, max_tokens: int) -> Usage:
        if self.order.say:
            self._on_text(self.order.say)
            return Usage(0, 0)
        model, tooling = self._shop.model, self.order.tooling
        if tooling is not None and isinstance(model, CallingModel):
            return model.generate_calling(
                self.order.prompt, max_tokens, self._on_text, self.cancel, tooling, self._calls.append
            )
        return model.generate(self.order.prompt, max_tokens, self._on_text, self.cancel)

    def _on_text(self, text: str) -> None:
        with self._lock:
            if self.lane is None and self.trial_until_s is not None and time.monotonic() > self.trial_until_s:
                self.cancel.cancel()
            if self.cancel.raised:
                raise Cancelled
            self._shop.meter.text(self._asked_ns, first=not self._first_token_ns)
            self._first_token_ns = self._first_token_ns or time.time_ns()
            for piece in self._splitter.push(text):
                self._queue(piece)

    def _queue(self, text: str) -> None:
        piece = _Piece(text, time.time_ns())
        if self.order.spoken:
            self._pieces.append(piece)
            self._go_on()
        else:
            self._out(self._cutter.silent(text), self._timings(piece))

    # --- speaking ---------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Give the voice its next piece, or say that this was all."""
        if self.cancel.raised or self.finished or self._speaking:
            return
        on_trial = self.lane is None
        if self._pieces:
            if self.paused or (on_trial and self._held):
                return
            self._speaking = True
            urgency = Urgency.TRIAL if on_trial else Urgency.ASKED
            try:
                self._shop.speaking.submit(self._session, self._speak, self.cancel, urgency)
            except StageFull:
                self._fail("busy", "too many answers wait for the voice")
        elif self._usage is not None and not on_trial:
            self._end(self._usage)

    def _speak(self) -> None:
        with self._lock:
            piece = self._pieces.popleft()
        try:
            speech = self._shop.voice.speak(piece.text, self.cancel)
        except PartFailed as failure:
            with self._lock:
                self._fail(failure.code, str(failure))
            return
        with self._lock:
            self._speaking = False
            if self.cancel.raised:
                return
            for number, unit in enumerate(self._cutter.cut(piece.text, speech)):
                self._out(unit, self._timings(piece) if number == 0 else ())
            self._go_on()

    # --- emitting ---------------------------------------------------------------------------------------------------

    def _timings(self, piece: _Piece) -> tuple[tuple[str, int], ...]:
        stages = (("clause", piece.ready_ns), ("audio", time.time_ns()))
        return stages if self._units or self._held else (("first_token", self._first_token_ns), *stages)

    def _out(self, unit: Unit, timings: tuple[tuple[str, int], ...]) -> None:
        if self.cancel.raised:
            return
        if self.lane is None:
            self._held.append((unit, timings))
        else:
            self._emit(unit, timings)

    def _emit(self, unit: Unit, timings: tuple[tuple[str, int], ...]) -> None:
        assert self.lane is not None
        if self.first_emitted_s is None:
            self.first_emitted_s = time.monotonic()
        self._shop.emit(
            Produced(
                self._session,
                self.lane.epoch,
                self.lane.response_id,
                self._units,
                "speak",
                unit.text,
                unit.audio,
                SPEAKING_RATE,
                unit.marks,
                timings,
            )
        )
        self._units += 1

    def _end(self, usage: Usage) -> None:
        assert self.lane is not None
        self.finished = True
        cut_off = usage.truncated and self.order.max_tokens is not None
        reason = "max_output_tokens" if cut_off else "completed"
        for call in self._calls:
            self._shop.emit(
                ToolCalled(
                    self._session, self.lane.epoch, self.lane.response_id, call.call_id, call.name, call.arguments
                )
            )
        self._shop.emit(
            LaneEnded(
                self._session,
                self.lane.epoch,
                self.lane.response_id,
                reason,
                usage.input_tokens,
                usage.output_tokens,
            )
        )

    def _fail(self, code: str, message: str) -> None:
        """An answer on trial fails in silence: a Respond then makes a new one."""
        if self.cancel.raised or self.finished:
            return
        self.cancel.cancel()
        self.finished = True
        self._shop.meter.failed()
        if self.lane is not None:
            self._shop.emit(LaneFailed(self._session, self.lane.epoch, self.lane.response_id, code, message))
