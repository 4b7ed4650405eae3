"""What a user may set of the cascade (``--model-option key=value``, the ``[model]`` table), checked at one place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from gpu_runtime.options import read_options


@attrs.frozen
class Settings:
    """Field names are the option names; times carry their unit."""

    detector: str = "silero"
    recogniser: str = "whisper-tiny-en"
    """``whisper-tiny-en``, or ``whisper:DIR`` for a CTranslate2 Whisper of one's own."""
    llm: str = "smollm2"
    """``smollm2``, ``gguf:PATH``, ``vllm:FOLDER`` (a Hugging Face folder, on vLLM in this environment), or
    ``openai:URL[,MODEL]`` for an OpenAI-compatible endpoint."""
    voice: str = "joe"
    """``joe``, ``piper:PATH.onnx``, or ``kokoro:NAME`` (or a path to a Kokoro voice file)."""
    llm_api_key_env: str = "OPENAI_API_KEY"
    """The environment variable whose value is sent to an ``openai:`` endpoint; a key itself is never an option."""
    llm_threads: int = 1
    """For its words. One leaves the voice a core: with two, the first audio came 80 ms later on two cores (median of 8
    spoken turns, 909 against 832 ms)."""
    llm_batch_threads: int = 2
    """For reading prompts."""
    llm_parallel: int = 2
    """How many answers the language model works on at once."""
    context_tokens: int = 2048
    """What one conversation's prompt and answer may hold together (``gguf:`` and ``vllm:``)."""
    llm_dtype: str = "auto"
    """``vllm:`` computes in ``bfloat16``, ``float16`` or ``float32``; ``auto``: as the folder says."""
    llm_kv_mib: int = 0
    """``vllm:`` memory for the conversations' keys and values; 0: most of the GPU, or 512 MiB on a CPU."""
    max_tokens: int = 160
    """The longest answer when the client sets no limit; an unfinished last sentence is then not spoken."""
    recogniser_threads: int = 2
    voice_threads: int = 2
    min_speech_ms: int = 96
    """Shorter bursts are not speech."""
    speculate_ms: int = 32
    """Silence after which the turn is transcribed and answered on trial, before the hang-over has passed."""
    anticipate: bool = True
    """Start the answer on trial too, and hold it until it is asked for."""
    first_piece_words: int = 4
    """The first words are spoken without waiting for the end of a clause after so many of them."""
    unit_ms: int = 320
    """Audio in one Produced, at most."""
    idle_fill_ms: int = 600
    """A client that stops sending in mid-speech is given silence after so long."""
    keep_audio_s: int = 180
    """Input that is kept for turns that the client closes itself."""
    persona: str = ""
    """Instructions for sessions that set none."""

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Settings:
        """From what the user wrote: strings, numbers or booleans. Raises ModelUnavailable for what makes no sense."""
        return read_options(cls, given, "the cascade", _LIMITS)


_LIMITS = {
    "llm_threads": (1, 256),
    "llm_batch_threads": (1, 256),
    "llm_parallel": (1, 64),
    "context_tokens": (512, 1_000_000),
    "llm_kv_mib": (0, 1_000_000),
    "max_tokens": (1, 100_000),
    "recogniser_threads": (1, 256),
    "voice_threads": (1, 256),
    "min_speech_ms": (32, 2_000),
    "speculate_ms": (32, 2_000),
    "first_piece_words": (1, 100),
    "unit_ms": (40, 2_000),
    "idle_fill_ms": (100, 60_000),
    "keep_audio_s": (10, 3_600),
}
