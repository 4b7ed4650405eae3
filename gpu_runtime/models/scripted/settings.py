"""The scripted model's settings: everything that it does is written here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs

from core.session.config import INPUT_KINDS
from gpu_runtime.options import read_options
from gpu_runtime.plugin import ModelUnavailable


@attrs.frozen
class ScriptedSettings:
    """All have defaults. Units and responses are named as they are counted: units from 0 within an answer."""

    answer_units: int = 10
    """Units of an ordinary answer. ``units=N`` in the last user text asks for N."""
    long_units: int = 60
    """Units of an answer when the last user text has the word ``long`` in it."""
    unit_ms: int = 200
    """Audio in one unit."""
    words_per_unit: int = 2
    first_audio_ms: int = 50
    """From Respond to the first unit."""
    rtf: float = 0.5
    """Real-time factor: a unit takes ``unit_ms * rtf`` to make. 0: the whole answer comes at once."""
    listen_units: int = 0
    """An answer begins with so many units of kind ``listen`` (no text, no audio)."""
    listen_at_unit: int = -1
    """An answer goes over to listening at this unit, and is over. -1: never."""
    speaks_up_ms: int = -1
    """So long after a lane was opened the model would say something that nobody asked for. -1: it never does."""
    output_rate: int = 24_000
    hear_ms: int = 0
    """From CommitTurn to Heard."""
    transcript: str = "turn {segment}"
    """What was said, in place of a recogniser: ``{segment}`` is the segment's or the commit's ordinal, ``{ms}`` its
    length."""
    speech_rms: float = 0.01
    """A 20 ms frame is loud from this RMS on, full scale being 1. It stands in for ``turn_detection.threshold``."""
    idle_fill_ms: int = 500
    """Mid-speech, when no audio has come for so long (on top of the last chunk's own length), silence is supplied in
    real time, so that a client which simply stops sending still ends its turn."""
    sessions_max: int = 256
    load_ms: int = 0
    """How long loading takes, for progress bars."""
    load_error: str = ""
    """Loading fails with this sentence."""
    die_at_unit: int = -1
    """The worker is killed when an answer comes to this unit. -1, here and below: never."""
    stall_at_unit: int = -1
    """The worker hangs there."""
    fail_at_unit: int = -1
    """The answer fails there (LaneFailed, ``model_error``); the session lives."""
    silent_at_unit: int = -1
    """The answer goes on in silence there, without an end; the session and the worker live."""
    fault_epoch: int = -1
    """The faults above happen in this epoch only; -1: in every one. A loss bumps the epoch, so a fault with an
    epoch happens once."""
    inputs: str = ",".join(INPUT_KINDS)
    """Which kinds of input it takes, by commas; what it does not take is refused."""
    tool_calls: bool = True
    """False: it never asks for a function, whatever tools a session has."""
    call_at_unit: int = -1
    """An answer that asks for a function does so before this unit of it; -1: after all it has to say."""
    can_truncate: bool = False
    """It says that its lanes can be cut back."""
    late_after_abort_ms: int = -1
    """So long after an abort, one more unit of the aborted answer is said all the same."""

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> ScriptedSettings:
        """From what the user wrote: strings, numbers or booleans. Raises ModelUnavailable for what makes no sense."""
        settings = read_options(cls, given, "the scripted model", _LIMITS)
        if set(settings.inputs.split(",")) - set(INPUT_KINDS):
            raise ModelUnavailable(f"the scripted model's option inputs is some of {', '.join(INPUT_KINDS)}, by commas")
        if settings.output_rate * settings.unit_ms % 1000:
            raise ModelUnavailable("the scripted model's option unit_ms must hold a whole number of samples")
        try:
            settings.transcript.format(segment=1, ms=1)
        except (KeyError, IndexError, ValueError) as error:
            raise ModelUnavailable("the scripted model's option transcript may name {segment} and {ms} only") from error
        return settings


_LIMITS = {
    **dict.fromkeys(
        ("answer_units", "long_units", "unit_ms", "words_per_unit", "output_rate", "sessions_max"), (1, math.inf)
    ),
    **dict.fromkeys(
        ("first_audio_ms", "rtf", "listen_units", "hear_ms", "speech_rms", "idle_fill_ms", "load_ms"), (0, math.inf)
    ),
}
