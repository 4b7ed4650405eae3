"""What a talk leaves behind: every wire event, what was heard, and a summary that can be compared."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any, TextIO

from adapters.client.frames import DuplexEvent
from adapters.client.player import SAMPLE_BYTES, Player, stereo, write_wav
from adapters.client.responses import ResponseState
from adapters.command_line.talk_folder import CONVERSATION, SUMMARY
from adapters.command_line.talk_script import Microphone, Utterance
from adapters.wire.schema import names

SECRETS = ("resume_token",)
LONG_CHARS = 4_096
PIECE_BYTES = 128 * 1024
SIDE_BYTES_MAX = 1024 * 1024 * 1024
"""Six hours at 24 kHz; what is said later is not saved. A WAV file of both sides ends at twice as much."""


@dataclass
class Answer:
    """One response of the assistant, on the talk's clock."""

    state: ResponseState
    number: int
    first_audio_ms: int
    """Of one without sound: its end."""
    done_ms: int | None = None
    cut_ms: int | None = None
    """When the player fell silent."""


class Side:
    """What one of the two said or was heard to say, silence included: on the disk, for a talk may take hours."""

    def __init__(self, folder: Path) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - ``close`` does
        self._size = 0

    def add(self, pcm: bytes) -> None:
        """Behind what is there."""
        if self._size + len(pcm) <= SIDE_BYTES_MAX:
            self._file.write(pcm)
            self._size += len(pcm)

    def pieces(self, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """From one sample to another, or to the end."""
        at, stop = start * SAMPLE_BYTES, self._size if end is None else min(end * SAMPLE_BYTES, self._size)
        while at < stop:
            self._file.seek(at)
            piece = self._file.read(min(PIECE_BYTES, stop - at))
            at += len(piece)
            yield piece

    def close(self) -> None:
        """It is gone then."""
        self._file.close()


@dataclass
class TalkRecord:
    """Collects during the talk; ``save`` writes the files."""

    microphone: Microphone
    player: Player
    speed: float = 1.0
    events: TextIO | None = None
    you: Side | None = None
    assistant: Side | None = None
    answers: list[Answer] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    reconnects: int = 0

    def note_event(self, event: DuplexEvent, at_ms: int) -> None:
        """One line of events.jsonl."""
        if self.events is not None:
            line = {"at_ms": at_ms, **without_audio(event.payload)}
            self.events.write(json.dumps(line, ensure_ascii=False) + "\n")

    def keep(self, folder: Path) -> None:
        """From now on, for ``save``: both sides."""
        self.you, self.assistant = Side(folder), Side(folder)

    def note_said(self, pcm: bytes) -> None:
        """What the user said since the last call, silence included."""
        if self.you is not None:
            self.you.add(pcm)

    def note_heard(self, pcm: bytes) -> None:
        """The same of what was heard of the assistant."""
        if self.assistant is not None:
            self.assistant.add(pcm)

    def answer(self, response_id: str) -> Answer | None:
        """By the response's id."""
        return next((answer for answer in self.answers if answer.state.response_id == response_id), None)

    def latency_ms(self, answer: Answer) -> int | None:
        """End of the user's speech -> the answer's first audio at the client, in real ms; None if it answers nothing
        that was spoken, or has no sound."""
        if not answer.state.received_samples:
            return None
        ends = [
            end_ms
            for utterance in self.microphone.utterances
            if utterance.end_sent_ms is not None
            and utterance.end_sent_ms <= answer.first_audio_ms
            and (end_ms := utterance.speech_end_ms if self.speed == 1.0 else utterance.end_sent_ms) is not None
        ]
        return round((answer.first_audio_ms - max(ends)) / self.speed) if ends else None

    def barge_in(self) -> dict[str, Any] | None:
        """The first answer that was cut, and how long that took from the beginning of the speech that cut it."""
        for answer in self.answers:
            starts = [
                utterance.speech_start_ms
                for utterance in self.microphone.utterances
                if utterance.speech_start_ms is not None
                and answer.cut_ms is not None
                and answer.first_audio_ms <= utterance.speech_start_ms <= answer.cut_ms
            ]
            if starts and answer.cut_ms is not None:
                latency = round((answer.cut_ms - max(starts)) / self.speed)
                return {"answer": answer.number, "speech_to_silence_ms": latency, "played_ms": self._played(answer)}
        return None

    def summary(self) -> dict[str, Any]:
        """The talk as one JSON object."""
        return {
            "turns": [self._turn(utterance) for utterance in self.microphone.utterances],
            "answers": [self._answer(answer) for answer in self.answers],
            "barge_in": self.barge_in(),
            "errors": self.errors,
            "reconnects": self.reconnects,
            "duration_ms": self.player.clock_ms,
            "speed": self.speed,
        }

    def save(self, folder: Path) -> list[Path]:
        """Write answer_N.wav, conversation.wav and summary.json; their paths. Needs ``keep``."""
        assert self.you is not None
        assert self.assistant is not None
        paths = []
        for answer in self.answers:
            paths.append(folder / f"answer_{answer.number}.wav")
            heard = self.player.heard_samples(answer.state.response_id)
            write_wav(str(paths[-1]), self.assistant.pieces(*heard), self.player.rate)
        sides = zip_longest(self.you.pieces(), self.assistant.pieces(), fillvalue=b"")
        paths.append(folder / CONVERSATION)
        both = (stereo(you, assistant) for you, assistant in sides)
        write_wav(str(paths[-1]), both, self.player.rate, channels=2)
        self.you.close()
        self.assistant.close()
        paths.append(folder / SUMMARY)
        paths[-1].write_text(json.dumps(self.summary(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        return paths

    def _played(self, answer: Answer) -> int:
        return self.player.played_ms(answer.state.response_id)

    def _turn(self, utterance: Utterance) -> dict[str, Any]:
        return {
            "said": utterance.name,
            "speech_start_ms": utterance.speech_start_ms,
            "speech_end_ms": utterance.speech_end_ms,
            "transcript": utterance.transcript,
        }

    def _answer(self, answer: Answer) -> dict[str, Any]:
        state = answer.state
        heard = next(track for track in self.player.statistics() if track.response_id == state.response_id)
        return {
            "file": f"answer_{answer.number}.wav",
            "response_id": state.response_id,
            "status": state.status,
            "reason": state.reason,
            "transcript": state.transcript,
            "heard_text": state.heard_text,
            "received_ms": heard.received_ms,
            "played_ms": heard.played_ms,
            "was_cut": heard.was_cut,
            "latency_ms": self.latency_ms(answer),
            "underruns": heard.underruns,
            "underrun_ms": heard.underrun_ms,
        }


def without_audio(value: Any) -> Any:
    """A wire event with audio and other long texts replaced by their length, and secrets left out."""
    if isinstance(value, Mapping):
        is_audio = value.get("type") == names.AUDIO_DELTA
        return {
            key: f"<{len(inner)} characters>"
            if isinstance(inner, str) and (len(inner) > LONG_CHARS or (is_audio and key == "delta"))
            else without_audio(inner)
            for key, inner in value.items()
            if key not in SECRETS
        }
    return [without_audio(inner) for inner in value] if isinstance(value, list) else value
