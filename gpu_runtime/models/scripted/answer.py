"""The scripted answer: which words, in which units, with which audio. A pure function of what was asked."""

from __future__ import annotations

import json
import re

import attrs

from core.ports.runtime import HistoryTurn, Produced, Respond, TextMark
from core.session.config import NAMED_TOOL
from gpu_runtime.models.scripted.identity import Identity, render
from gpu_runtime.models.scripted.settings import ScriptedSettings

ECHO_WORDS_MAX = 8
UNITS_MAX = 10_000
_UNITS_ASKED = re.compile(r"\bunits=(\d{1,5})\b")
_CALL_ASKED = re.compile(r"\bcall=([\w.-]+)")
_LONG_ASKED = re.compile(r"\blong\b", re.IGNORECASE)


@attrs.frozen
class Call:
    """A function call, before unit ``at_unit`` of the answer."""

    name: str
    arguments: str
    at_unit: int


@attrs.frozen
class Known:
    """What a session has been told beside its history: ``texts`` of its turns, ``images`` and ``voice`` by digest."""

    texts: tuple[str, ...]
    images: frozenset[str] = frozenset()
    voice: str = ""
    tools: tuple[str, ...] = ()
    """Names."""
    tool_choice: str = "auto"


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
    call: Call | None = None

    @property
    def units(self) -> int:
        """Units of both kinds."""
        return self.listen_units + len(self.unit_words)

    @property
    def output_tokens(self) -> int:
        """A word is a token."""
        return sum(len(words) for words in self.unit_words)


def plan(asked: Respond, known: Known, ordinal: int, settings: ScriptedSettings) -> Answer:
    """Plan the session's ``ordinal``-th answer (from 1).

    The words: how many turns the history has, the first words of the last user text, what it was shown and given, then
    filling words ``a3w7`` (third answer, word 7 of it), up to ``words_per_unit`` a unit. ``max_output_tokens`` cuts it at
    so many words.
    """
    turns = list(zip(known.texts, asked.history, strict=True))
    last_user = next((text for text, turn in reversed(turns) if turn.role == "user"), "")
    count = _units(last_user, settings)
    wanted = count * settings.words_per_unit
    words = [str(len(turns)), *last_user.split()[:ECHO_WORDS_MAX], *_given(asked, known)][:wanted]
    words += [f"a{ordinal}w{number}" for number in range(len(words), wanted)]
    limit = asked.max_output_tokens
    cut = limit is not None and limit < wanted
    if cut:
        words = words[:limit]
    step = settings.words_per_unit
    call = _call(last_user, asked.history, known, settings)
    return Answer(
        epoch=asked.epoch,
        response_id=asked.response_id,
        ordinal=ordinal,
        listen_units=settings.listen_units,
        unit_words=tuple(tuple(words[start : start + step]) for start in range(0, len(words), step)),
        reason="max_output_tokens" if cut else "completed",
        input_tokens=sum(len(text.split()) for text in (asked.instructions, *known.texts)),
        spoken="audio" in asked.modalities,
        call=call,
    )


def _given(asked: Respond, known: Known) -> list[str]:
    """Words for what it was shown, for the voice, and for the last turn if that is a tool's result."""
    named = [digest for turn in asked.history for digest in turn.images]
    seen = sum(digest in known.images for digest in named)
    words = [f"saw={seen}"] if seen else []
    if seen < len(named):
        words.append(f"missing={len(named) - seen}")
    if known.voice:
        words.append(f"voice={known.voice[:4]}")
    if asked.history and asked.history[-1].role == "tool":
        words += ["got", *known.texts[-1].split()[:ECHO_WORDS_MAX]]
    return words


def _call(last_user: str, history: tuple[HistoryTurn, ...], known: Known, settings: ScriptedSettings) -> Call | None:
    """What the answer asks for: never twice in a row."""
    if not (settings.tool_calls and known.tools) or known.tool_choice == "none":
        return None
    if history and history[-1].role == "tool":
        return None
    named = _CALL_ASKED.search(last_user)
    name = named[1] if named is not None else ""
    if known.tool_choice.startswith(NAMED_TOOL):
        name = known.tool_choice.removeprefix(NAMED_TOOL)
    elif known.tool_choice == "required":
        name = name if name in known.tools else known.tools[0]
    if name not in known.tools:
        return None
    at_unit = settings.call_at_unit if settings.call_at_unit >= 0 else UNITS_MAX
    return Call(name, json.dumps({"text": last_user}), at_unit)


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
    if spoken_number < 0 or number == settings.listen_at_unit:
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
