"""A SQLite store's file, as the file system sees it: whether it is still the one that was opened, and whether there is room.

SQLite keeps writing to a file that was deleted or replaced, and says that all is well. What is acknowledged then is gone
when the server ends, so each transaction looks first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

ROOM_BYTES_MIN = 16 * 1024 * 1024
"""Two groups of commits, as big as they may be."""

Inode = tuple[int, int]


class StoreFile:
    """The database at ``path`` and its write-ahead log; both must be there."""

    def __init__(self, path: Path) -> None:
        self._paths = (path, Path(f"{path}-wal"))
        self._opened = list(self._inodes())
        self.low = False
        """There is less than ROOM_BYTES_MIN, as of the last ``measure``."""

    def _inodes(self) -> Iterator[Inode | None]:
        for path in self._paths:
            try:
                found = os.stat(path)
            except OSError:
                yield None
            else:
                yield found.st_dev, found.st_ino

    def lost(self) -> str | None:
        """Why what is written now would be written to nowhere; None when it would not. Two system calls."""
        for place, (path, now) in enumerate(zip(self._paths, self._inodes(), strict=True)):
            opened = self._opened[place]
            if opened is None:  # SQLite makes the log when it is first needed
                self._opened[place] = now
            elif now != opened:
                what = "is gone" if now is None else "was replaced by another one"
                return f"the store's file {path.name} {what}; put the old one back, or restart the server"
        return None

    def measure(self) -> None:
        """Look how much room there is. May block."""
        try:
            found = os.statvfs(self._paths[0].parent)
        except OSError:
            return  # the folder is gone: lost() says so
        self.low = found.f_bavail * found.f_frsize < ROOM_BYTES_MIN
