"""What travels between a host and its worker: length-prefixed msgpack messages over a local stream.

A frame is four bytes of length, big-endian, then ``[tag, body]`` in msgpack; a body is a map of the message's fields.
Tags are those of the runtime port plus the host's own, which no session ever sees: the host sends ``load`` first and
then ``ping``; the worker answers ``progress``, ``unavailable``, and ``pong`` with ``figures``. Settings go in ``load``
and not on the command line, because a setting may be a secret and every user of a machine can read its command lines.

Nothing here does I/O: ``Codec`` maps messages to frames, ``FrameBuffer`` cuts a stream of bytes into payloads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

import attrs
import msgspec

from core.ports.runtime import FROM_RUNTIME, TO_RUNTIME, FromRuntime, ModelStatistics, ToRuntime

FRAME_BYTES_MAX = 32 * 1024 * 1024
HEADER_BYTES = 4

Message = TypeVar("Message")


class ProtocolError(Exception):
    """The peer sent something that is no message, or we were asked to. ``code`` is stable: ``frame_too_large``,
    ``torn_frame``, ``bad_frame``, ``unknown_tag``, ``bad_body``. The text names tag and field, never the content."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


@attrs.frozen
class Load:
    """Host -> worker, the first frame: load the model with these settings."""

    settings: dict[str, Any]


@attrs.frozen
class Ping:
    """Host -> worker: answer with a Pong of the same number."""

    number: int


@attrs.frozen
class Pong:
    """Worker -> host: the thread that takes messages is alive."""

    number: int


@attrs.frozen
class Figures:
    """Worker -> host behind each Pong: what the model says of its work."""

    model: ModelStatistics


@attrs.frozen
class Progress:
    """Worker -> host while loading: what is being done, and which fraction (0..1) of the whole is behind it."""

    stage: str
    fraction: float


@attrs.frozen
class Unavailable:
    """Worker -> host instead of RuntimeReady: the model cannot be loaded, and what to do about it."""

    message: str


ToWorker = ToRuntime | Load | Ping
FromWorker = FromRuntime | Pong | Figures | Progress | Unavailable

TO_WORKER: dict[str, type] = {**TO_RUNTIME, "load": Load, "ping": Ping}
FROM_WORKER: dict[str, type] = {
    **FROM_RUNTIME,
    "pong": Pong,
    "figures": Figures,
    "progress": Progress,
    "unavailable": Unavailable,
}


class Codec(Generic[Message]):
    """One direction's messages. Bodies are checked against their classes; unknown fields are passed over."""

    def __init__(self, classes: Mapping[str, type]) -> None:
        self._tags = {cls: tag for tag, cls in classes.items()}
        self._decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {
            tag: msgspec.msgpack.Decoder(cls) for tag, cls in classes.items()
        }
        self._envelope = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, message: Message) -> bytes:
        """The whole frame. Raises ProtocolError for a message of the other direction, or one that is too large."""
        tag = self._tags.get(type(message))
        if tag is None:
            raise ProtocolError("unknown_tag", f"{type(message).__name__} does not travel this way")
        frame = bytearray(HEADER_BYTES)
        self._encoder.encode_into((tag, message), frame, HEADER_BYTES)
        size = len(frame) - HEADER_BYTES
        if size > FRAME_BYTES_MAX:
            raise ProtocolError("frame_too_large", f"{tag} of {size} bytes, at most {FRAME_BYTES_MAX} are allowed")
        frame[:HEADER_BYTES] = size.to_bytes(HEADER_BYTES, "big")
        return bytes(frame)

    def decode(self, payload: bytes) -> Message:
        """The message in a frame's payload. Raises ProtocolError."""
        try:
            tag, body = self._envelope.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ProtocolError("bad_frame", f"{len(payload)} bytes are no [tag, body]: {error}") from error
        decoder = self._decoders.get(tag)
        if decoder is None:
            raise ProtocolError("unknown_tag", repr(tag[:40]))
        try:
            message: Message = decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ProtocolError("bad_body", f"{tag}: {error}") from error
        return message


TO_WORKER_CODEC: Codec[ToWorker] = Codec(TO_WORKER)
FROM_WORKER_CODEC: Codec[FromWorker] = Codec(FROM_WORKER)


class FrameBuffer:
    """Cuts a byte stream into payloads. Holds at most one frame and what came with its last piece."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._data = bytearray()
        self._frame_bytes_max = frame_bytes_max

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The payloads that ``data`` completes, in order. Raises ProtocolError (frame_too_large) at a bad length."""
        self._data += data
        start = 0
        try:
            while len(self._data) - start >= HEADER_BYTES:
                size = int.from_bytes(self._data[start : start + HEADER_BYTES], "big")
                if size > self._frame_bytes_max:
                    raise ProtocolError("frame_too_large", f"{size} bytes, at most {self._frame_bytes_max} are allowed")
                end = start + HEADER_BYTES + size
                if len(self._data) < end:
                    return
                payload = bytes(memoryview(self._data)[start + HEADER_BYTES : end])
                start = end
                yield payload
        finally:
            del self._data[:start]

    def end(self) -> None:
        """The stream is over. Raises ProtocolError (torn_frame) when a frame was begun and not finished."""
        if self._data:
            raise ProtocolError("torn_frame", f"the stream ended {len(self._data)} bytes into a frame")
