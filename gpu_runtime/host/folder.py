"""A folder of temporary files that is removed with its owner, also when nobody was there to do it: the next owner does.

The owner holds a lock on the folder for as long as its process lives. A folder whose lock is free belongs to the dead.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "duologue-worker-"


class OwnedFolder:
    """Made and locked; ``remove`` it. Raises OSError."""

    def __init__(self) -> None:
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
            try:
                self._lock = _locked(self.path)
                return
            except OSError:  # somebody took it for a dead one's in this very moment
                if self.path.exists():
                    raise

    def remove(self) -> None:
        """With all that is in it. Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def remove_abandoned() -> None:
    """Those of owners that are dead. Others' folders, and what cannot be removed, stay."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            lock = _locked(path)
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def _locked(path: Path) -> int:
    """The descriptor that holds its lock. Raises OSError when somebody else has it, or when it is not there."""
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.stat(path)
    except OSError:
        os.close(lock)
        raise
    return lock
