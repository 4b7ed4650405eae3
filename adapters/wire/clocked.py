"""What the dialects without event ids share: numbering their frames, and answering nothing to what they do not know.

Both are clocked by the client's input: MiniCPM-o's demo answers each chunk with one result, Moshi gives as much sound as it
gets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from adapters.wire import fields
from adapters.wire.updates import (
    COMMON_SETTERS,
    INPUT_SETTERS,
    OUTPUT_SETTERS,
    Draft,
    Rules,
    Setter,
    ignored,
    set_fields,
)
from core.ports.projection import LIVE, Credentials, Frame, Resumption
from core.session import events as e
from core.session.state import SessionState


def _audio(draft: Draft, value: Any, param: str) -> None:
    shape = fields.table(value, param)
    for side, setters in (("input", INPUT_SETTERS), ("output", OUTPUT_SETTERS)):
        if shape.get(side) is not None:
            unfixed = {name: setter for name, setter in setters.items() if name not in _FIXED}
            set_fields(draft, fields.table(shape[side], f"{param}.{side}"), unfixed, f"{param}.{side}")


MORTAL_MAX = 1_024
"""Frames kept that a cut may still kill; the outbox holds no more than half of that before an answer fails."""

_FIXED = ("format", "sample_rate_hz", "sample_rate", "input_audio_format", "output_audio_format")
_SETTERS: dict[str, Setter] = {
    **COMMON_SETTERS,
    **dict.fromkeys(_FIXED, ignored),
    "modalities": ignored,
    "output_modalities": ignored,
    "audio": _audio,
}


def fixed_rules(input_rate: int, output_rate: int) -> Rules:
    """Settings of a dialect whose audio is what the protocol says, whatever a server's configuration or a key asks for."""
    return Rules(input_rate, output_rate, _SETTERS)


@attrs.define
class Numbered:
    """Gives out numbers to the frames of one record. Invariant: ``number`` is the last one given out."""

    record: e.Record
    number: int
    frames: list[Frame] = attrs.field(factory=list)

    def add(
        self,
        payload: Mapping[str, Any],
        kind: str = LIVE,
        response_id: str | None = None,
        epoch: int | None = None,
        units: tuple[e.Output, ...] = (),
        audio_field: str = "",
    ) -> int:
        """One frame; ``units`` are outputs of one response whose sound it carries. Returns its number."""
        self.number += 1
        self.frames.append(
            Frame(
                self.number,
                self.record.position,
                self.record.epoch if epoch is None else epoch,
                kind,
                payload,
                response_id,
                "+".join(unit.digest for unit in units),
                audio_field if units else "",
                units[0].rate if units else 24_000,
                units[0].start_ms if units else 0,
                sum(unit.audio_ms for unit in units),
                sum(unit.size_bytes for unit in units),
            )
        )
        return self.number


class ClockedProjection:
    """A projection whose methods are named by ``handlers``. See core.ports.projection.Projection."""

    dialect = ""
    version = 1
    handlers: Mapping[type, str] = {}

    def __init__(self) -> None:
        self._number = 0

    @property
    def number(self) -> int:
        """The last number given out."""
        return self._number

    def fold(self, record: e.Record, state: SessionState) -> list[Frame]:
        """The frames that ``record`` adds; ``state`` is the machine's state after it."""
        name = self.handlers.get(type(record.event))
        if name is None:
            return []
        out = Numbered(record, self._number)
        getattr(self, name)(out, record.event, state)
        self._number = out.number
        return out.frames

    def pass_over(self, record: e.Record, state: SessionState) -> None:
        """The same, frames and all: a session of these dialects that lost its client is read back to be ended only."""
        self.fold(record, state)

    def greeting(self, state: SessionState, credentials: Credentials | None) -> list[Mapping[str, Any]]:
        """What opens an attachment."""
        raise NotImplementedError

    def resumed(self, state: SessionState, credentials: Credentials, resumption: Resumption) -> Mapping[str, Any]:
        """Nobody resumes here; the same words as at the beginning."""
        return self.greeting(state, credentials)[0]
