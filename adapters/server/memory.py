"""Giving memory back to the system after a flood.

What a server holds after a flood is not in use: sessions, frames and messages are gone. glibc keeps it, in pieces between
what lives on, and every thread adds an arena of its own. After 16 clients had sent 56 MiB each, 31 MiB were in use and up to
940 MiB were kept. So large blocks are taken from the system one by one (they go back when they are freed), there are few
arenas, and now and then the rest is given back. Without glibc nothing is done.
"""

from __future__ import annotations

import ctypes
from typing import Any

import trio

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
LARGE_BYTES = 128 * 1024
"""glibc's own beginning, which it raises to 32 MiB as large blocks come and go."""
ARENAS_MAX = 2
"""One for the event loop, one for the threads beside it."""

LOOK_EVERY_S = 15.0
KEPT_BYTES_MAX = 32 * 1024 * 1024
"""So much may be free and kept: giving back costs some ms, in which nobody gets memory."""


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def _glibc() -> Any | None:
    """The C library, if it is one that can be asked."""
    library = ctypes.CDLL(None)
    if not all(hasattr(library, name) for name in ("mallopt", "mallinfo2", "malloc_trim")):
        return None
    library.mallinfo2.restype = _Mallinfo
    return library


LIBRARY = _glibc()


def keep_little() -> None:
    """For a process that only serves, before it has threads."""
    if LIBRARY is not None:
        LIBRARY.mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        LIBRARY.mallopt(M_TRIM_THRESHOLD, LARGE_BYTES)
        LIBRARY.mallopt(M_ARENA_MAX, ARENAS_MAX)


def kept_bytes() -> int:
    """What is free, and not given back."""
    return 0 if LIBRARY is None else int(LIBRARY.mallinfo2().fordblks)


async def give_back() -> None:
    """Go on giving back what is too much to keep."""
    while LIBRARY is not None:
        await trio.sleep(LOOK_EVERY_S)
        if kept_bytes() > KEPT_BYTES_MAX:
            await trio.to_thread.run_sync(LIBRARY.malloc_trim, 0)
