"""Which command is legal in which phase. Everything that is not in the table is refused with the phase's code."""

from __future__ import annotations

from core.session import commands as c
from core.session.state import Phase

_OPEN = frozenset({Phase.OPEN})
_LIVE = frozenset({Phase.OPEN, Phase.PAUSED})
_ALWAYS = frozenset(Phase)

LEGAL: dict[type, frozenset[Phase]] = {
    c.AppendAudio: _OPEN,
    c.AppendPart: _OPEN,
    c.ClearInput: _LIVE,
    c.CommitInput: _OPEN,
    c.CreateResponse: _OPEN,
    c.CancelOutput: _LIVE,
    c.JudgeOverlap: _LIVE,
    c.CreateItem: _LIVE,
    c.DeleteItem: _LIVE,
    c.RetrieveItem: _LIVE,
    c.AckPlayback: _LIVE,
    c.UpdateConfig: _LIVE,
    c.Pause: _LIVE,
    c.Unpause: _LIVE,
    c.Touch: _LIVE,
    c.Close: _LIVE,
    c.SpeechHeard: _LIVE,
    c.SpeechContinues: _LIVE,
    c.SpeechFinished: _LIVE,
    c.TurnHeard: _LIVE,
    c.ModelSpeaks: _OPEN,
    c.ModelOutput: _LIVE,
    c.ModelCall: _LIVE,
    c.ModelDone: _LIVE,
    c.LoseRuntime: _LIVE,
    c.GainRuntime: _LIVE,
    c.Attach: _LIVE,
    c.ConfirmToken: _LIVE,
    c.Detach: _LIVE,
    c.FireDeadline: _LIVE,
    c.FailOutput: _LIVE,
}

PHASE_CODES: dict[Phase, str] = {
    Phase.NEW: "session_not_open",
    Phase.PAUSED: "session_paused",
    Phase.CLOSED: "session_not_open",
}
"""The refusal for a client's command in a phase where it is not legal. What comes from the runtime or the actor in such
a phase is late, and decides nothing."""
