"""The scripted answer: which words, in which units, with which audio. A pure function of what was asked."""

from __future__ import annotations

import re

import attrs

from core.ports.runtime import Produced, Respond, TextMark
from gpu_runtime.models.scripted.identity import Identity, render
from gpu_runtime.models.scripted.settings import ScriptedSettings

ECHO_WORDS_MAX = 8
UNITS_MAX = 10_000
_UNITS_ASKED = re.compile(r"\bunits=(\d{1,5})\b")
_LONG_ASKED = re.compile(r"\blong\b", re.IGNORECASE)


@attrs.frozen
class Answer:
    """An answer before it is spoken. ``unit_words``: the words of each speaking unit, in order."""

    epoch: int
    response_id: str
    ordinal: int
    listen_units: int
    unit_words: tuple[tuple[str, ...], ...]
    reason: str
    input_tokens: int
    spoken: bool

    @property
    def units(self) -> int:
        """Units of both kinds."""
        return self.listen_units + len(self.unit_words)

    @property
    def output_tokens(self) -> int:
        """A word is a token."""
        return sum(len(words) for words in self.unit_words)


def plan(asked: Respond, history: tuple[str, ...], last_user: str, ordinal: int, settings: ScriptedSettings) -> Answer:
    """Plan the session's ``ordinal``-th answer (from 1). ``history`` holds the turns' texts, ``last_user`` the last
    user's.

    The words: how many turns the history has, the first words of the last user text, then filling words ``a3w7`` (third
    answer, word 7 of it), up to ``words_per_unit`` a unit. ``max_output_tokens`` cuts it at so many words.
    """
    count = _units(last_user, settings)
    wanted = count * settings.words_per_unit
    words = [str(len(history)), *last_user.split()[:ECHO_WORDS_MAX]][:wanted]
    words += [f"a{ordinal}w{number}" for number in range(len(words), wanted)]
    limit = asked.max_output_tokens
    cut = limit is not None and limit < wanted
    if cut:
        words = words[:limit]
    step = settings.words_per_unit
    return Answer(
        epoch=asked.epoch,
        response_id=asked.response_id,
        ordinal=ordinal,
        listen_units=settings.listen_units,
        unit_words=tuple(tuple(words[start : start + step]) for start in range(0, len(words), step)),
        reason="max_output_tokens" if cut else "completed",
        input_tokens=sum(len(text.split()) for text in (asked.instructions, *history)),
        spoken="audio" in asked.modalities,
    )


def _units(last_user: str, settings: ScriptedSettings) -> int:
    asked = _UNITS_ASKED.search(last_user)
    if asked is not None:
        return max(1, min(UNITS_MAX, int(asked[1])))
    return settings.long_units if _LONG_ASKED.search(last_user) else settings.answer_units


def unit(
    session: str, answer: Answer, number: int, chars: int, wall_ns: int, settings: ScriptedSettings
) -> tuple[Produced, int]:
    """Unit ``number`` of an answer of whose text ``chars`` characters were said before; and how many are said then."""
    timings = (("first_token", wall_ns), ("clause", wall_ns), ("audio", wall_ns))
    rate = settings.output_rate
    spoken_number = number - answer.listen_units
    if spoken_number < 0:
        silent = Produced(session, answer.epoch, answer.response_id, number, "listen", "", b"", rate, (), timings)
        return silent, chars
    words = answer.unit_words[spoken_number] if spoken_number < len(answer.unit_words) else ("late",)
    text = " ".join(words) if spoken_number == 0 else "".join(f" {word}" for word in words)
    audio, marks = b"", []
    end = chars
    if answer.spoken:
        audio = render(Identity(answer.epoch, answer.ordinal, number), rate * settings.unit_ms // 1000, rate)
    for place, word in enumerate(words, start=1):
        end += len(word) + (end > 0)
        end_ms = spoken_number * settings.unit_ms + settings.unit_ms * place // len(words)
        marks.append(TextMark(end, end_ms))
    said = Produced(
        session=session,
        epoch=answer.epoch,
        response_id=answer.response_id,
        unit=number,
        kind="speak",
        text=text,
        audio=audio,
        rate=rate,
        marks=tuple(marks) if answer.spoken else (),
        timings=timings,
    )
    return said, end
