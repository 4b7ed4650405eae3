"""The end of a process group whose leader is dead and not reaped yet: until then its number cannot be anybody else's.

Python's resource trackers are spared at first. They are there to free what killed processes could not (shared memory,
semaphores), and end by themselves as soon as they have.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import trio

TRACKER = b"multiprocessing.resource_tracker"
_POLL_S = 0.02


async def end_group(group: int, tracker_timeout_s: float = 3.0) -> None:
    """SIGKILL to all who are in it, trackers last. Linux only."""
    with trio.move_on_after(tracker_timeout_s):
        while members := members_of(group):
            for pid in members:
                if TRACKER not in _command(pid):
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
            await trio.sleep(_POLL_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def members_of(group: int) -> list[int]:
    """Those who live: zombies only wait for their parents."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                state, _parent, its_group = (folder / "stat").read_bytes().rsplit(b")", 1)[1].split()[:3]
                if int(its_group) == group and state not in b"ZX":
                    found.append(int(folder.name))
    return found


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
