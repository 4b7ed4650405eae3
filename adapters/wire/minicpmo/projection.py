"""The log as the demo's clients see it: one ``result`` for each chunk of input, in order.

Theory. A chunk's result carries everything that the model has said since the last one, of one answer at most; so the client
hears an answer with its own clock, as with the model that this protocol was made for. While an answer has nothing new to
give, its result is an empty one that speaks (one that listens would end the client's turn). A cut kills the results that were
not handed over, silent ones too, or they would overtake the others; each is replaced by one that listens, so that the client
still gets one result a chunk, in the chunks' order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import attrs

from adapters.wire.clocked import MORTAL_MAX, ClockedProjection, Numbered
from core.ports.projection import DELTA, Credentials
from core.session import events as e
from core.session.config import AUDIO
from core.session.state import SessionState

TURNS_MAX = 64

_EXPIRED = {"pause_expired": "Pause timeout", "idle_ttl_expired": "Idle timeout", "session_expired": "Session timeout"}
_REFUSALS = {"session_paused": "Worker is paused"}
"""Codes of the machine -> the sentence that the demo's clients look for."""


@attrs.define
class Turn:
    """One answer that the client has not heard the end of. ``units``: made, and in no result yet."""

    response_id: str
    epoch: int
    units: list[e.Output] = attrs.field(factory=list)
    said: bool = False
    ended: bool = False


class MiniCPMOProjection(ClockedProjection):
    """See the module's theory."""

    dialect = "minicpmo"
    handlers: Mapping[type, str] = {
        e.ConfigChanged: "_config_changed",
        e.Append: "_append",
        e.ResponseStarted: "_response_started",
        e.Output: "_output",
        e.ResponseEnded: "_response_ended",
        e.EpochBump: "_epoch_bump",
        e.Refused: "_refused",
        e.Paused: "_paused",
        e.Unpaused: "_unpaused",
        e.SessionClosed: "_session_closed",
    }

    def __init__(self) -> None:
        super().__init__()
        self._chunks = 0
        self._turns: deque[Turn] = deque(maxlen=TURNS_MAX)
        self._mortal: deque[tuple[int, int]] = deque(maxlen=MORTAL_MAX)
        """(number, chunk) of the results since the last cut."""
        self._turn_is_over = False

    def greeting(self, state: SessionState, credentials: Credentials | None) -> list[Mapping[str, Any]]:
        """The end of the queue, whether or not there was one."""
        return [{"type": "queue_done"}]

    def _config_changed(self, out: Numbered, event: e.ConfigChanged, state: SessionState) -> None:
        if event.event_id is not None and event.event_id.startswith(PREPARE):
            out.add({"type": "prepared", "prompt_length": len(event.config.instructions)})

    # -- one result a chunk ---------------------------------------------------------------------------------------

    def _append(self, out: Numbered, event: e.Append, state: SessionState) -> None:
        if event.kind != AUDIO:
            return
        chunk, self._chunks = self._chunks, self._chunks + 1
        turn = self._turns[0] if self._turns else None
        if turn is None or not (turn.units or turn.said or turn.ended):
            number = out.add(self._listen(out, chunk), DELTA)
        elif turn.units:
            number = self._speak(out, turn, chunk)
        elif turn.ended:
            self._turn_is_over = True
            number = out.add(self._listen(out, chunk), DELTA)
        else:
            number = out.add(_result(out, chunk, is_listen=False), DELTA)
        if turn is not None and turn.ended:
            self._turns.popleft()
        self._mortal.append((number, chunk))

    def _listen(self, out: Numbered, chunk: int) -> dict[str, Any]:
        over, self._turn_is_over = self._turn_is_over, False
        return _result(out, chunk, is_listen=True, end_of_turn=over)

    def _speak(self, out: Numbered, turn: Turn, chunk: int) -> int:
        units, turn.units, turn.said = tuple(turn.units), [], True
        text = "".join(unit.text for unit in units)
        result = _result(out, chunk, is_listen=False, text=text, end_of_turn=turn.ended)
        sounding = tuple(unit for unit in units if unit.samples)
        return out.add(result, DELTA, turn.response_id, turn.epoch, sounding, "audio_data")

    # -- answers --------------------------------------------------------------------------------------------------

    def _response_started(self, out: Numbered, event: e.ResponseStarted, state: SessionState) -> None:
        self._turns.append(Turn(event.response_id, state.epoch))

    def _output(self, out: Numbered, event: e.Output, state: SessionState) -> None:
        turn = self._turn(event.response_id)
        if turn is not None and event.kind == "speak":
            turn.units.append(event)

    def _response_ended(self, out: Numbered, event: e.ResponseEnded, state: SessionState) -> None:
        turn = self._turn(event.response_id)
        if turn is not None:
            turn.ended = True

    def _turn(self, response_id: str) -> Turn | None:
        return next((turn for turn in self._turns if turn.response_id == response_id), None)

    def _epoch_bump(self, out: Numbered, event: e.EpochBump, state: SessionState) -> None:
        if event.disposition != "cut":
            return
        dead = [chunk for number, chunk in self._mortal if number > event.cursor]
        self._turn_is_over |= any(turn.said for turn in self._turns) or bool(dead)
        self._turns.clear()
        self._mortal.clear()
        for chunk in dead:
            out.add(self._listen(out, chunk))

    # -- the session ----------------------------------------------------------------------------------------------

    def _refused(self, out: Numbered, event: e.Refused, state: SessionState) -> None:
        out.add({"type": "error", "error": _REFUSALS.get(event.code, event.message)})

    def _paused(self, out: Numbered, event: e.Paused, state: SessionState) -> None:
        out.add({"type": "paused", "timeout": state.config.pause_watchdog_ms / 1000})

    def _unpaused(self, out: Numbered, event: e.Unpaused, state: SessionState) -> None:
        out.add({"type": "resumed"})

    def _session_closed(self, out: Numbered, event: e.SessionClosed, state: SessionState) -> None:
        if event.reason in _EXPIRED:
            seconds = f" ({state.config.pause_watchdog_ms / 1000:.1f}s)" if event.reason == "pause_expired" else ""
            out.add({"type": "timeout", "reason": _EXPIRED[event.reason] + seconds})
        else:
            out.add({"type": "stopped"})


PREPARE = "server.prepare."
"""Begins the event ids of configurations that a ``prepare`` asked for: only those are answered with ``prepared``."""


def _result(out: Numbered, chunk: int, *, is_listen: bool, text: str = "", end_of_turn: bool = False) -> dict[str, Any]:
    """Everything that the demo's result has. What this server does not measure is 0; ``wall_clock_ms`` too, since a result
    does not wait for the model."""
    return {
        "type": "result",
        "is_listen": is_listen,
        "text": text,
        "audio_data": None,
        "end_of_turn": end_of_turn,
        "current_time": chunk,
        "cost_llm_ms": 0.0,
        "cost_tts_prep_ms": 0.0,
        "cost_tts_ms": 0.0,
        "cost_token2wav_ms": 0.0,
        "cost_all_ms": 0.0,
        "n_tokens": 0,
        "n_tts_tokens": 0,
        "server_send_ts": out.record.at_ns / 1e9,
        "wall_clock_ms": 0.0,
        "kv_cache_length": 0,
        "vision_slices": 0,
        "vision_tokens": 0,
    }
