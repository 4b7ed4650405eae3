"""One talk: a microphone's sound goes out, answers come in and are heard by a player, on one clock for both.

The clock runs at ``speed`` times real time; everything that is measured is brought back to real time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import trio

from adapters.client.errors import ClientError
from adapters.client.frames import DuplexEvent
from adapters.client.player import Player
from adapters.client.responses import ResponseState
from adapters.client.trio_client import DuplexClient
from adapters.command_line.audio_files import BadAudioFile, Recording, level
from adapters.command_line.talk_record import Answer, TalkRecord
from adapters.command_line.talk_script import Microphone
from adapters.wire.schema import names
from core.session.time_units import NS_PER_MS
from gpu_runtime.resampler import Resampler

RATE = 24_000
STEP_MS = 20
"""How often the player and the meter are looked at."""
RECENT_BYTES = 100 * RATE // 1_000 * 2
"""Whose loudness the meter shows."""
LINGER_MS = 300
INPUT_KEPT_MS = 10_000
"""After so long without a connection silence and live sound are not kept for it any more."""
LONG_S = 60
"""Beyond that one is told how long a question lasts: it is spoken in real time."""
HISTORY_WAIT_MS = 5_000
"""How long, at most, after the last answer's end the server's word is waited for on what of it was heard."""
PATIENCE_MS = 4_000
"""How long an interruption may stay unanswered before it counts as one that the assistant talked over."""


TURN_DETECTED = "turn_detected"
"""Why an answer ended that speech has cut."""

SIGNS_OF_LIFE = frozenset({names.AUDIO_COMMITTED, names.RESPONSE_CREATED, names.AUDIO_DELTA, names.RESPONSE_DONE})
"""Events after which the wait for an answer begins anew."""


class NoAnswer(Exception):
    """Nothing came within the time limit; the text says what was waited for."""


class Narrator(Protocol):
    """Shows a talk to whoever watches."""

    def line(self, text: str) -> None:
        """Something that happened."""

    def levels(self, user: float, assistant: float, state: str) -> None:
        """Loudness of both sides, 0 to 1, and what goes on."""


class SoundCard(Protocol):
    """A real microphone and loudspeaker."""

    async def record(self) -> bytes:
        """The next chunk of the microphone, pcm16 at 24 kHz."""

    def play(self, pcm: bytes) -> None:
        """Sound for the loudspeaker, right behind what it has."""


@dataclass(frozen=True)
class TalkPlan:
    """What is said. ``question`` and ``interrupt`` are (name, sound at 24 kHz)."""

    question: tuple[str, Recording] | None = None
    text: str | None = None
    interrupt: tuple[str, Recording] | None = None
    after_s: float = 1.5
    """How much of the first answer is heard before it is interrupted."""
    chunk_ms: int = 200
    speed: float = 1.0
    timeout_s: float = 30.0


class Talk:
    """Runs a plan over a client that is entered. ``record`` is complete when ``run`` returns or raises."""

    def __init__(
        self,
        client: DuplexClient,
        plan: TalkPlan,
        narrator: Narrator,
        *,
        prebuffer_ms: int = 0,
        sound_card: SoundCard | None = None,
    ) -> None:
        self._client = client
        self._plan = plan
        self._narrator = narrator
        self._sound_card = sound_card
        self._origin = trio.current_time()
        self._player = Player(0, rate=RATE, prebuffer_ms=prebuffer_ms, keep_audio=False)
        self._player.tap = self._heard = bytearray()
        self._recent = b""
        self.microphone = Microphone(RATE)
        self.record = TalkRecord(self.microphone, self._player, plan.speed)
        self._resampled_id = ""
        self._resampler = Resampler(RATE, RATE)
        self._progress_ms = 0
        self._interrupted = plan.interrupt is None
        self._user_level = 0.0
        self._lost_at_ms: int | None = None
        self._refusal_told = ""

    # -- clock ----------------------------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        """The talk's clock."""
        return self._now_ns() // NS_PER_MS

    def _now_ns(self) -> int:
        return int((trio.current_time() - self._origin) * self._plan.speed * 1e9)

    async def _sleep_until(self, at_ms: int) -> None:
        await trio.sleep(max(0.0, (at_ms - self._now_ns() / 1e6) / 1_000 / self._plan.speed))

    # -- running --------------------------------------------------------------------------------------------------

    async def run(self, *enough: Callable[[], Awaitable[None]]) -> None:
        """Talk until all was said and all answers were heard, or one of ``enough`` returns. Raises NoAnswer, what
        ended the client, or what a file's reading or writing raises."""
        events = self._client.events()
        if self._plan.question is not None:
            said = self.microphone.say(*self._plan.question)
            length_s = said.length_ms // 1_000
            if length_s > LONG_S:
                self._narrator.line(f"-- {said.name} lasts {length_s // 60} min {length_s % 60} s; Ctrl-C ends it")
        if self._plan.text is not None:
            self._narrator.line(f"you: {self._plan.text}")
            await self._client.send_text(self._plan.text)
        failure: list[Exception] = []
        async with trio.open_nursery() as nursery:
            for work in (self._speak, self._watch, *enough):
                nursery.start_soon(self._until_failure, work, failure, nursery.cancel_scope)

            async def listen() -> None:
                async for event in events:
                    await self._hear(event)

            nursery.start_soon(self._until_failure, listen, failure, nursery.cancel_scope)
        if failure:
            raise failure[0]

    async def _until_failure(
        self, work: Callable[[], Awaitable[None]], failure: list[Exception], scope: trio.CancelScope
    ) -> None:
        """Run one of the talk's tasks; its end is the talk's end, and its error is raised by ``run`` outside of any
        group."""
        try:
            await work()
        except (NoAnswer, ClientError, BadAudioFile, OSError) as error:
            failure.append(error)
        scope.cancel()

    async def _speak(self) -> None:
        sent_ms = 0
        while True:
            if self._sound_card is not None and self._plan.question is None:
                chunk = self.microphone.hear(await self._sound_card.record(), self.now_ms)
            else:
                sent_ms += self._plan.chunk_ms
                await self._sleep_until(sent_ms)
                chunk = self.microphone.take(self._plan.chunk_ms, self.now_ms)
            self._user_level = level(chunk)
            self.record.note_said(chunk)
            if not self._is_long_gone() or (self._sound_card is None and any(chunk)):
                await self._client.append_audio(chunk)

    def _is_long_gone(self) -> bool:
        return self._lost_at_ms is not None and self.now_ms - self._lost_at_ms > INPUT_KEPT_MS * self._plan.speed

    async def _watch(self) -> None:
        while not self._is_over():
            await trio.sleep(STEP_MS / 1_000 / self._plan.speed)
            self._player.advance(self._now_ns())
            await self._report_playback()
            self._maybe_interrupt()
            self._show()
            self._tell_outage()
            busy = self._player.sounding_id is not None or not self.microphone.is_silent
            if busy or self._lost_at_ms is not None:  # the reconnect policy ends an outage
                self._progress_ms = self.now_ms
            waited_s = (self.now_ms - self._progress_ms) / 1_000 / self._plan.speed
            if self._sound_card is None and waited_s > self._plan.timeout_s:
                raise NoAnswer(f"no answer within {self._plan.timeout_s:g} s after the last that was heard or said")

    def _tell_outage(self) -> None:
        """Say once that the connection is gone, and once each new thing that the server answers meanwhile."""
        if self._client.is_connected:
            self._lost_at_ms, self._refusal_told = None, ""
            return
        if self._lost_at_ms is None:
            self._lost_at_ms = self.now_ms
            limit_s = self._client.reconnect.outage_ms_max // 1_000 if self._client.reconnect is not None else 0
            self._narrator.line(f"-- the connection is lost; waiting for the server, for {limit_s} s at most")
        refusal = self._client.refusal
        if refusal is not None and refusal.code != self._refusal_told:
            self._refusal_told = refusal.code
            self._narrator.line(f"-- the server is there again, but: {refusal.message.rstrip('.')} ({refusal.code})")

    async def _report_playback(self) -> None:
        sounding = self._player.sounding_id
        for answer in self.record.answers[-4:]:
            response_id = answer.state.response_id
            played_ms = self._player.played_ms(response_id)
            if played_ms > (answer.state.played_ms or 0) and (response_id == sounding or answer.done_ms is not None):
                await self._client.ack_playback(played_ms, response_id=response_id)

    def _maybe_interrupt(self) -> None:
        if self._interrupted or not self.record.answers or self._plan.interrupt is None:
            return
        first = self.record.answers[0]
        played_ms = self._player.played_ms(first.state.response_id)
        if played_ms >= self._plan.after_s * 1_000 or (first.done_ms is not None and self._player.is_idle):
            self._interrupted = True
            name, _ = self._plan.interrupt
            self.microphone.say(*self._plan.interrupt)
            self._narrator.line(f"-- {name} begins after {played_ms / 1_000:.1f} s of the answer")

    def _is_over(self) -> bool:
        """All was said, every answer was heard, and the last thing said had its chance to be answered."""
        if self._sound_card is not None and self._plan.question is None and self._plan.text is None:
            return False
        if not self._interrupted or not self.microphone.is_silent or not self.record.answers:
            return False
        if any(answer.done_ms is None for answer in self.record.answers) or not self._player.is_idle:
            return False
        last = self.record.answers[-1]
        said = self.microphone.utterances[-1] if self.microphone.utterances else None
        quiet_ms = self.now_ms - max(last.done_ms or 0, self._progress_ms)
        if self._history_is_late() and quiet_ms < HISTORY_WAIT_MS * self._plan.speed:
            return False
        said_ms = (said.speech_end_ms or 0) if said is not None else 0
        if last.first_audio_ms >= said_ms:
            return quiet_ms >= LINGER_MS
        # Speech that cut an answer is a turn, however long its answer takes: only the time limit ends that wait.
        return quiet_ms >= PATIENCE_MS and last.state.reason != TURN_DETECTED

    def _history_is_late(self) -> bool:
        """A server that answers acks has not yet answered the last one of an answer: what it says was heard may grow."""
        states = [answer.state for answer in self.record.answers]
        return any(
            state.history_ms is not None and state.acked_ms is not None and state.history_ms < state.acked_ms
            for state in states
        )

    # -- what comes in --------------------------------------------------------------------------------------------

    async def _hear(self, event: DuplexEvent) -> None:
        now_ms = self.now_ms
        self.record.note_event(event, now_ms)
        if event.type in SIGNS_OF_LIFE:
            self._progress_ms = now_ms
        response_id = str(event.payload.get("response_id") or "")
        match event.type:
            case names.AUDIO_DELTA:
                self._hear_audio(event, response_id, now_ms)
            case names.AUDIO_DONE:
                self._player.end(response_id, self._now_ns())
            case names.RESPONSE_DONE:
                await self._answer_ended(response_id or str(event.payload["response"]["id"]), now_ms)
            case names.OUTPUT_CLEARED:
                await self._fall_silent(response_id, now_ms)
            case names.INPUT_TRANSCRIPT_DONE:
                self._user_said(str(event.payload.get("transcript", "")).strip())
            case names.SESSION_RESUMED:
                self.record.reconnects += 1
                self._narrator.line("-- reconnected, the session goes on")
            case names.ERROR:
                error = event.payload.get("error")
                body = dict(error) if isinstance(error, dict) else {"message": str(error)}
                self.record.errors.append(body)
                self._narrator.line(f"-- the server says {body.get('code')}: {body.get('message')}")

    def _hear_audio(self, event: DuplexEvent, response_id: str, now_ms: int) -> None:
        state = self._client.response_state(response_id)
        if state is None:
            return
        if self.record.answer(response_id) is None:
            answer = self._answer_begins(state, now_ms)
            latency = self.record.latency_ms(answer)
            self._narrator.line(f"-- answer {answer.number} begins" + (f" after {latency} ms" if latency else ""))
        self._player.feed(response_id, self._at_our_rate(state, event.audio), self._now_ns())

    def _answer_begins(self, state: ResponseState, now_ms: int) -> Answer:
        answer = Answer(state, len(self.record.answers) + 1, now_ms)
        self.record.answers.append(answer)
        return answer

    def _at_our_rate(self, state: ResponseState, pcm: bytes) -> bytes:
        if state.rate == RATE:
            return pcm
        if state.response_id != self._resampled_id:
            self._resampled_id, self._resampler = state.response_id, Resampler(state.rate, RATE)
        samples = self._resampler.push(np.frombuffer(pcm, "<i2").astype(np.float32))
        return bytes(np.clip(np.rint(samples), -32_768, 32_767).astype("<i2").tobytes())

    async def _answer_ended(self, response_id: str, now_ms: int) -> None:
        answer, state = self.record.answer(response_id), self._client.response_state(response_id)
        if answer is None and state is not None and state.status == names.STATUS_COMPLETED and state.transcript:
            answer = self._answer_begins(state, now_ms)
            self._player.feed(response_id, b"", self._now_ns())
            self._narrator.line(f"-- answer {answer.number} has no sound")
        if answer is None:
            return
        answer.done_ms = now_ms
        if answer.state.was_cut:
            await self._fall_silent(response_id, now_ms)
            played_s = self._player.played_ms(response_id) / 1_000
            self._narrator.line(f"assistant: {answer.state.heard_text} -- cut off after {played_s:.1f} s")
        else:
            self._player.end(response_id, self._now_ns())
            self._narrator.line(f"assistant: {answer.state.transcript}")

    async def _fall_silent(self, response_id: str, now_ms: int) -> None:
        answer = self.record.answer(response_id)
        if answer is None or answer.cut_ms is not None:
            return
        played_ms = self._player.cut(self._now_ns(), response_id)
        answer.cut_ms = now_ms
        await self._client.ack_playback(played_ms, response_id=response_id, at_once=True)

    def _user_said(self, text: str) -> None:
        waiting = [utterance for utterance in self.microphone.utterances if utterance.transcript is None]
        spoken = [utterance for utterance in waiting if (utterance.speech_end_ms or 0) <= self.now_ms]
        if spoken:
            spoken[0].transcript = text
        self._narrator.line(f"you: {text}")

    def _show(self) -> None:
        heard = bytes(self._heard)
        self._heard.clear()
        self.record.note_heard(heard)
        self._recent = (self._recent + heard)[-RECENT_BYTES:]
        recent = b"" if self._player.sounding_id is None else self._recent
        state = "speaking" if self._player.sounding_id else "listening" if self._client.is_connected else "reconnecting"
        self._narrator.levels(self._user_level, level(recent), state)
        if self._sound_card is not None and heard:
            self._sound_card.play(heard)
