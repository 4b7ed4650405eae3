"""A client's images and reference voices, checked and named by the digest of their bytes."""

from __future__ import annotations

from collections.abc import Sequence

import pybase64

from adapters.wire.audio import decode_audio
from adapters.wire.dialect import Ask
from adapters.wire.problems import Problem
from core.ports.store import Body
from core.session import commands as c
from core.session.config import REFERENCE_AUDIO, AudioFormat
from core.session.digest import body_digest
from core.session.state import REFERENCE_BYTES_MAX

IMAGE_CHARS_MAX = 4_000_000
"""Base64 of one image: 3 MB, as vLLM-Omni has it."""

REFERENCE = AudioFormat("pcm_f32le", 16_000)
REFERENCE_TYPE = "audio/pcm;encoding=f32le;rate=16000"

TYPE_CHARS_MAX = 64

_DATA = "data:"
_MAGIC = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"RIFF": "image/webp"}
"""How a file begins -> what it is. RIFF is WebP only with WEBP behind it."""


def of_data_url(value: object, param: str) -> tuple[c.ImageBody, Body]:
    """An image as ``data:image/png;base64,...``. Raises Problem."""
    if not isinstance(value, str) or not value.startswith(_DATA):
        raise Problem(
            "invalid_image", f"'{param}' is a data URL with a PNG, JPEG or WebP image; others are not read.", param
        )
    head, comma, data = value.partition(",")
    if not comma or not head.endswith(";base64"):
        raise Problem("invalid_image", f"'{param}' is a data URL in base64.", param)
    return _image(data, param, "invalid_image")


def of_frames(value: object, param: str, frames_max: int) -> list[tuple[c.ImageBody, Body]]:
    """Images of a camera: a list of bare base64. Raises Problem."""
    if not isinstance(value, list) or len(value) > frames_max:
        raise Problem("invalid_video_frames", f"'{param}' is a list of at most {frames_max} images in base64.", param)
    return [_image(frame, f"{param}[{place}]", "invalid_video_frames") for place, frame in enumerate(value)]


def _image(value: object, param: str, code: str) -> tuple[c.ImageBody, Body]:
    if not isinstance(value, str) or not value or len(value) > IMAGE_CHARS_MAX:
        raise Problem(code, f"'{param}' is base64 of at most {IMAGE_CHARS_MAX} characters.", param)
    try:
        data = pybase64.b64decode(value, validate=True)
    except ValueError:
        raise Problem(code, f"'{param}' is no base64.", param) from None
    kind = next((kind for magic, kind in _MAGIC.items() if data.startswith(magic)), None)
    if kind is None or (kind == "image/webp" and data[8:12] != b"WEBP"):
        raise Problem(code, f"'{param}' is no PNG, JPEG or WebP image.", param)
    digest = body_digest(data)
    return c.ImageBody(digest, len(data), kind), Body(digest, data)


def images_of(found: Sequence[tuple[c.ImageBody, Body]]) -> tuple[tuple[c.ImageBody, ...], tuple[Body, ...]]:
    """What a command names, and the bytes."""
    return tuple(image for image, _ in found), tuple(body for _, body in found)


def voice_of_data_url(value: object, param: str) -> list[Ask]:
    """The same as ``data:audio/wav;base64,...``: the model reads what it is."""
    head, comma, text = value.partition(",") if isinstance(value, str) else ("", "", "")
    kind = head.removeprefix(_DATA).removesuffix(";base64")
    known = head.startswith(_DATA) and head.endswith(";base64") and kind.startswith("audio/")
    if not comma or not known or len(kind) > TYPE_CHARS_MAX:
        raise Problem("bad_audio", f"'{param}' is a data URL of a sound in base64; others are not fetched.", param)
    try:
        data = pybase64.b64decode(text, validate=True)
    except ValueError:
        raise Problem("bad_audio", f"'{param}' is not base64.", param) from None
    if not data or len(data) > REFERENCE_BYTES_MAX:
        raise Problem("bad_audio", f"'{param}' has at most {REFERENCE_BYTES_MAX} bytes of sound.", param)
    return [_voice(data, kind)]


def _voice(data: bytes, kind: str) -> Ask:
    body = Body(body_digest(data), data)
    return Ask(c.AppendPart(REFERENCE_AUDIO, body.digest, len(data), kind), (body,))


def reference_voice(value: str, param: str) -> list[Ask]:
    """The voice that the model is to speak with: base64 of float32 at 16 kHz. Raises Problem."""
    data, samples = decode_audio(value, REFERENCE, param)
    return [_voice(data, REFERENCE_TYPE)] if samples else []
