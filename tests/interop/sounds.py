"""What a client says in these tests: pcm16 that the scripted ear takes for speech, or for none."""

from __future__ import annotations

import math
import struct


def tone(ms: int, rate: int) -> bytes:
    """``ms`` of a loud tone."""
    count = ms * rate // 1000
    return struct.pack(f"<{count}h", *(int(8_000 * math.sin(i * 0.3)) for i in range(count)))


def silence(ms: int, rate: int) -> bytes:
    """``ms`` of nothing."""
    return bytes(ms * rate // 1000 * 2)
