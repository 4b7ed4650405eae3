"""The four parts of a cascade, as interfaces: Detector, Recogniser, LanguageModel, Voice.

Each is one small Protocol, chosen by a setting, so that another model is another file and one line in the factory.
Parts know nothing of sessions, epochs or turns. A part that cannot be loaded raises ModelUnavailable (see plugin.py); one
that fails at work raises PartFailed, which costs one answer or one transcript and never the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import attrs
import numpy as np
import numpy.typing as npt

from core.ports.runtime import ModelStatistics, Tool

Samples = npt.NDArray[np.float32]
"""Mono audio, full scale at -1..1."""

Pcm = npt.NDArray[np.int16]
"""Mono audio as 16-bit integers."""

HEARING_RATE = 16_000
"""What detectors and recognisers take, in Hz."""

FRAME_SAMPLES = 512
"""One detector step: 32 ms at 16 kHz."""

SPEAKING_RATE = 24_000
"""What voices give, in Hz."""


class PartFailed(Exception):
    """A part could not do this piece of work. ``code`` is stable; the message holds no conversation content."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Cancelled(Exception):
    """The work was cancelled while a part was at it."""


class Cancel:
    """A flag that is raised once, from any thread, and wakes what cannot look at it (a socket, a running graph)."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._wakers: list[Callable[[], None]] = []

    @property
    def raised(self) -> bool:
        """Whether it is up."""
        return self._event.is_set()

    def cancel(self) -> None:
        """Raise the flag; idempotent."""
        with self._lock:
            self._event.set()
            wakers, self._wakers = self._wakers, []
        for wake in wakers:
            wake()

    def waking(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call ``wake`` when the flag goes up (at once if it is up). Returns a function that forgets it again."""
        with self._lock:
            already = self._event.is_set()
            if not already:
                self._wakers.append(wake)
        if already:
            wake()

        def forget() -> None:
            with self._lock:
                if wake in self._wakers:
                    self._wakers.remove(wake)

        return forget

    def check(self) -> None:
        """Raise Cancelled if the flag is up."""
        if self._event.is_set():
            raise Cancelled


class Detector(Protocol):
    """Hears whether there is speech. Stateful: one for each stream of audio."""

    def probability(self, frame: Samples) -> float:
        """That the next ``FRAME_SAMPLES`` samples at ``HEARING_RATE`` hold speech, 0..1."""

    def reset(self) -> None:
        """Forget the stream so far."""


@attrs.frozen
class Reading:
    """What a recogniser made of some audio. ``no_speech`` and ``confidence`` are probabilities, 0..1."""

    text: str
    no_speech: float = 0.0
    confidence: float = 1.0


class Recogniser(Protocol):
    """Reads speech. Stateless; called from one thread."""

    longest_s: float
    """How much audio one call can take."""

    def read(self, audio: Samples, cancel: Cancel) -> Reading:
        """The text of ``audio`` (16 kHz, at most ``longest_s``). Raises PartFailed, and Cancelled where it can stop."""


@attrs.frozen
class ChatCall:
    """A function call; ``arguments`` is JSON text."""

    call_id: str
    name: str
    arguments: str


@attrs.frozen
class ChatMessage:
    """One message of a chat prompt: ``role`` is system, user or assistant. A model that calls functions also gets an
    assistant's with ``calls``, and the role tool: the result of the call ``call_id``."""

    role: str
    content: str
    calls: tuple[ChatCall, ...] = ()
    call_id: str = ""


@attrs.frozen
class Tooling:
    """The functions that a model may ask for; ``choice`` as in the session's configuration."""

    tools: tuple[Tool, ...]
    choice: str = "auto"


@attrs.frozen
class Usage:
    """How a generation ended. ``truncated``: at ``max_tokens`` and not by the model's own choice."""

    input_tokens: int
    output_tokens: int
    truncated: bool = False


OnText = Callable[[str], None]
"""Takes the next piece of generated text, in order, on the thread that called ``generate``."""


class LanguageModel(Protocol):
    """Thinks. May be called from several threads at once, up to ``parallel``."""

    parallel: int
    context_tokens: int
    """What a prompt and its answer may hold together; 0 means unknown."""

    few_shot: bool
    """Whether the model is small enough to need examples of good answers in its prompt."""

    def generate(self, messages: Sequence[ChatMessage], max_tokens: int, on_text: OnText, cancel: Cancel) -> Usage:
        """Answer. Raises Cancelled soon after ``cancel`` is raised, PartFailed (``lane_full``: the prompt is too long)."""

    def warm(self, messages: Sequence[ChatMessage], cancel: Cancel) -> None:
        """Prepare for prompts that begin with ``messages``. May do nothing. Raises Cancelled, PartFailed."""

    def statistics(self) -> ModelStatistics | None:
        """Of its lanes, at once. None: it has none to tell of."""

    def close(self) -> None:
        """Free everything."""


OnCall = Callable[[ChatCall], None]
"""Takes a function call that the model asks for, whole."""


@runtime_checkable
class CallingModel(LanguageModel, Protocol):
    """A language model that may ask for functions. Its prompts have calls and results in them."""

    def generate_calling(
        self,
        messages: Sequence[ChatMessage],
        max_tokens: int,
        on_text: OnText,
        cancel: Cancel,
        tooling: Tooling,
        on_call: OnCall,
    ) -> Usage:
        """As ``generate``; ``on_call`` for each call, after the text."""


@attrs.frozen(eq=False)
class Speech:
    """Spoken text: ``audio`` at ``SPEAKING_RATE``; ``marks`` are (characters spoken, samples) at the ends of words, the
    last one at the end of the text."""

    audio: Pcm
    marks: tuple[tuple[int, int], ...]


class Voice(Protocol):
    """Speaks. Called from one thread."""

    name: str

    def speak(self, text: str, cancel: Cancel) -> Speech:
        """Say ``text``, all of it. Raises Cancelled, PartFailed."""
