"""One session's lanes: which answers live, which are dead, and which answer is likely to be asked for next.

A lane is dead once a higher epoch was opened or it was aborted; what belongs to a dead lane is cancelled and ignored.
"""

from __future__ import annotations

import logging
import threading
import time

from core.ports.runtime import (
    AbortLane,
    ConfigureSession,
    HistoryTurn,
    OpenLane,
    OpenSession,
    PauseLane,
    Respond,
    ResumeLane,
    Tool,
)
from gpu_runtime.models.cascade.answer import TRIAL_S, Answer, Lane, Order, Workshop
from gpu_runtime.models.cascade.parts import CallingModel, Cancel, PartFailed, Tooling
from gpu_runtime.models.cascade.prompt import PromptBuilder
from gpu_runtime.models.cascade.stage import StageFull, Urgency
from gpu_runtime.models.cascade.transcripts import Transcripts

logger = logging.getLogger(__name__)

NOT_UNDERSTOOD = "Sorry, I did not catch that."
"""Said when an answer is asked for to a turn in which nothing could be heard."""


class SessionLanes:
    """Takes the lane messages of one session. Safe to use from several threads."""

    def __init__(self, session: str, shop: Workshop, prompts: PromptBuilder, transcripts: Transcripts) -> None:
        self._session = session
        self._shop = shop
        self._prompts = prompts
        self._transcripts = transcripts
        self._lock = threading.RLock()
        self._epoch_min = 0
        """Lanes below are dead."""
        self._paused: set[int] = set()
        self._answers: list[Answer] = []
        """Adopted and not finished."""
        self._trial: Answer | None = None
        self._warming = Cancel()
        self._tools: tuple[Tool, ...] = ()
        self._tool_choice = "auto"
        self._instructions = ""
        self._history: tuple[HistoryTurn, ...] = ()
        self._spoken = True
        self._last: Answer | None = None
        """The answer that follows ``_history``."""

    def configure(self, message: OpenSession | ConfigureSession) -> None:
        """The session's functions, for a model that calls any."""
        if isinstance(self._shop.model, CallingModel):
            with self._lock:
                self._tools, self._tool_choice = message.tools, message.tool_choice

    def _tooling(self, tools: tuple[Tool, ...] | None = None, choice: str | None = None) -> Tooling | None:
        tools = self._tools if tools is None or not isinstance(self._shop.model, CallingModel) else tools
        choice = self._tool_choice if choice is None else choice
        return Tooling(tools, choice) if tools and choice != "none" else None

    # --- the port's messages ----------------------------------------------------------------------------------------

    def open(self, message: OpenLane) -> None:
        """A new epoch: older answers are dead, and the prompt's beginning is prepared while nobody waits."""
        with self._lock:
            if message.epoch < self._epoch_min:
                return
            self._kill(message.epoch)
            self._drop_trial()
            self._instructions, self._history, self._last = message.instructions, message.history, None
            warming = self._warming = Cancel()

        def warm() -> None:
            try:
                self._shop.model.warm(
                    self._prompts.build(message.instructions, message.history, self._transcripts.text), warming
                )
            except PartFailed as failure:
                logger.warning("session %s: the lane could not be warmed: %s", self._session, failure.code)

        try:
            self._shop.thinking.submit(self._session, warm, warming, Urgency.BACKGROUND)
        except StageFull:
            logger.warning("session %s: no time to warm the lane", self._session)

    def respond(self, message: Respond) -> None:
        """Answer, as soon as the texts of all turns are known."""
        items = frozenset(turn.item_id for turn in message.history if turn.text is None)
        self._transcripts.when_known(items, lambda: self._begin(message))

    def abort(self, message: AbortLane) -> None:
        """Nothing of this epoch or an older one is emitted from here on."""
        with self._lock:
            self._kill(message.epoch + 1)
            self._drop_trial()

    def pause(self, message: PauseLane) -> None:
        """Produce nothing more for now."""
        with self._lock:
            self._paused.add(message.epoch)
            self._tell_paused()

    def resume(self, message: ResumeLane) -> None:
        """Go on."""
        with self._lock:
            self._paused.discard(message.epoch)
            self._tell_paused()

    def close(self) -> None:
        """All lanes are dead."""
        with self._lock:
            for answer in self._answers:
                answer.cancel.cancel()
            self._answers.clear()
            self._drop_trial()
            self._warming.cancel()

    # --- what the ear expects ---------------------------------------------------------------------------------------

    def expect_turn(self, text: str) -> None:
        """Begin the answer on trial, if it is clear what the history will be."""
        with self._lock:
            self._drop_trial()
            last = self._last
            if not self._shop.settings.anticipate or (last is not None and not _was_heard(last)):
                return
            turns = [HistoryTurn("assistant", last.text, "")] if last is not None else []
            turns.append(HistoryTurn("user", text, ""))
            prompt = self._prompts.build(self._instructions, (*self._history, *turns), self._transcripts.text)
            self._trial = Answer(
                self._shop, self._session, Order(prompt, self._spoken, None, tooling=self._tooling()), self._lock
            )
            self._trial.start(Urgency.TRIAL)

    def turn_goes_on(self) -> None:
        """The answer on trial is to an unfinished turn."""
        with self._lock:
            self._drop_trial()

    def turn_is_over(self) -> None:
        """If no Respond comes soon, none will."""
        with self._lock:
            if self._trial is not None:
                self._trial.trial_until_s = time.monotonic() + TRIAL_S

    # --- inside -----------------------------------------------------------------------------------------------------

    def _begin(self, message: Respond) -> None:
        with self._lock:
            if message.epoch < self._epoch_min:
                return
            order = self._order(message)
            trial, self._trial = self._trial, None
            if trial is not None and (trial.order != order or trial.cancel.raised):
                trial.cancel.cancel()
                trial = None
            answer = trial or Answer(self._shop, self._session, order, self._lock)
            self._warming.cancel()
            self._answers = [other for other in self._answers if not other.finished]
            self._answers.append(answer)
            self._instructions, self._history, self._last = message.instructions, message.history, answer
            self._spoken = order.spoken
            answer.paused = message.epoch in self._paused
            answer.adopt(Lane(message.epoch, message.response_id))
            if trial is None:
                answer.start(Urgency.ASKED)

    def _order(self, message: Respond) -> Order:
        spoken = "audio" in message.modalities
        last = message.history[-1] if message.history else None
        if last is not None and last.role == "user":
            turn = [
                part for part in message.history[-2:] if part.item_id == last.item_id
            ]  # what was typed, what was said
            texts = [self._transcripts.text(part.item_id) if part.text is None else part.text for part in turn]
            if not "".join(texts).strip():
                return Order((), spoken, message.max_output_tokens, say=NOT_UNDERSTOOD)
        prompt = self._prompts.build(message.instructions, message.history, self._transcripts.text)
        tooling = self._tooling(message.tools, message.tool_choice)
        return Order(prompt, spoken, message.max_output_tokens, tooling=tooling)

    def _kill(self, epoch_min: int) -> None:
        self._epoch_min = max(self._epoch_min, epoch_min)
        for answer in self._answers:
            if answer.lane is not None and answer.lane.epoch < self._epoch_min:
                answer.cancel.cancel()
        self._answers = [answer for answer in self._answers if not answer.cancel.raised]
        self._paused = {epoch for epoch in self._paused if epoch >= self._epoch_min}

    def _drop_trial(self) -> None:
        if self._trial is not None:
            self._trial.cancel.cancel()
            self._trial = None

    def _tell_paused(self) -> None:
        for answer in self._answers:
            if answer.lane is not None:
                answer.pause(answer.lane.epoch in self._paused)


def _was_heard(answer: Answer) -> bool:
    """Whether the answer is complete and its audio has had the time to be played: else nobody knows yet what of it will
    be history."""
    if not answer.finished or answer.first_emitted_s is None or answer.cancel.raised:
        return False
    return time.monotonic() >= answer.first_emitted_s + answer.audio_ms / 1000
