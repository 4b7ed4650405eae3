"""Moshi's messages: a kind byte and its payload. Sound is Opus at 24 kHz in 80 ms frames, one Ogg stream each way.

The codec is sphn, which Moshi's own servers and clients use: an extra of this project (``moshi``), see the decision records.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

import numpy as np

from adapters.wire.audio import OutputEncoder
from adapters.wire.moshi import projection as p
from adapters.wire.problems import Problem
from core.ports.projection import Frame
from core.session.config import AudioFormat

RATE = 24_000
FRAME_SAMPLES = 1_920
FRAME_MS = 80
MESSAGE_BYTES_MAX = 64 * 1024
"""The largest message of a client: 80 ms are a few hundred bytes."""

KIND_HANDSHAKE, KIND_AUDIO, KIND_TEXT, KIND_ERROR = b"\x00", b"\x01", b"\x02", b"\x05"
OGG_PAGE, OGG_BEGINS = b"OggS", 0x02
"""How a page begins, and the flag in its sixth byte that makes it a stream's first."""

_PCM16 = AudioFormat("pcm16", RATE)


def codec_is_here() -> bool:
    """Whether the extra is installed."""
    return importlib.util.find_spec("sphn") is not None


class MoshiEncoder:
    """See adapters.wire.encoding.Encoder. Less than a frame of sound is held back until the rest of it comes."""

    def __init__(self) -> None:
        import sphn

        self._opus = sphn.OpusStreamWriter(RATE)
        self._audio = OutputEncoder()
        self._held = np.zeros(0, np.float32)

    def frame(self, frame: Frame, body: bytes | None) -> bytes:
        """See Encoder."""
        payload = frame.payload
        kind = payload["type"]
        if kind == p.AUDIO:
            pcm = self._audio.encode(frame.response_id, body or b"", frame.rate, _PCM16)
            return self._sound(np.frombuffer(pcm, "<i2").astype(np.float32) / np.float32(32_768))
        if kind == p.SILENCE:
            return self._sound(np.zeros(payload["ms"] * RATE // 1000, np.float32))
        if kind == p.CUT:
            self._held = np.zeros(0, np.float32)  # what it holds was cut, too
            return b""
        return self.event(payload)

    def event(self, payload: Mapping[str, Any]) -> bytes:
        """See Encoder."""
        kind = payload["type"]
        if kind == p.HANDSHAKE:
            return KIND_HANDSHAKE
        return (KIND_TEXT if kind == p.TEXT else KIND_ERROR) + str(payload["text"]).encode()

    def _sound(self, samples: np.ndarray[Any, np.dtype[np.float32]]) -> bytes:
        """Whole frames of what there is; nothing when there is no whole one."""
        held = np.concatenate((self._held, samples))
        whole = len(held) // FRAME_SAMPLES * FRAME_SAMPLES
        self._held = held[whole:]
        pages = b"".join(self._opus.append_pcm(held[at : at + FRAME_SAMPLES]) for at in range(0, whole, FRAME_SAMPLES))
        return KIND_AUDIO + pages if pages else b""


class MoshiReader:
    """One connection's messages -> events: ``audio`` with its ``pcm`` (pcm16 at 24 kHz), ``text`` that was typed. Kinds that
    mean nothing to a server are None, as the protocol asks."""

    def __init__(self) -> None:
        self._restart()

    def _restart(self) -> None:
        import sphn

        self._opus = sphn.OpusStreamReader(RATE)

    def __call__(self, message: str | bytes) -> Mapping[str, Any] | None:
        """Raises Problem for what is no message of the protocol; after unreadable sound a new Ogg stream may begin."""
        if isinstance(message, str):
            raise Problem("bad_event", "Text messages have no meaning here; send a kind byte and its payload.")
        if len(message) > MESSAGE_BYTES_MAX:
            raise Problem("event_too_large", f"A message may have {MESSAGE_BYTES_MAX} bytes, not {len(message)}.")
        if message[:1] == KIND_TEXT:
            return _typed(message[1:])
        if message[:1] != KIND_AUDIO:
            return None
        if message[1:5] == OGG_PAGE and message[6:7] and message[6] & OGG_BEGINS:
            self._restart()  # whatever came before, which may be a page that the codec waits for the rest of
        try:
            sound = self._opus.append_bytes(message[1:])
        except ValueError as error:
            self._restart()
            raise Problem(
                "bad_audio", f"The sound is not Ogg-Opus: {error}. Begin a new Ogg stream.", "audio"
            ) from None
        if not len(sound):
            return None
        pcm = np.clip(np.rint(sound * np.float32(32_767)), -32_768, 32_767).astype("<i2")
        return {"type": p.AUDIO, "pcm": pcm.tobytes()}


def _typed(payload: bytes) -> Mapping[str, Any]:
    """Moshi's own clients never send this kind; here it is a turn that is typed."""
    try:
        return {"type": p.TEXT, "text": payload.decode()}
    except UnicodeDecodeError:
        raise Problem("bad_event", "A text is UTF-8.", "text") from None
