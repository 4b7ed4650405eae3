"""What the disk under a store costs by itself: the floor of everything that is made durable before it is told."""

from __future__ import annotations

import os
import tempfile
import time

PAGES_BYTES = 16 * 1024
"""About what a small commit adds to SQLite's log: four pages."""

PAUSE_S = 0.01


def syncs(count: int) -> list[float]:
    """Latencies in ms of ``count`` writes of a few pages, each with its fdatasync, where ``own_server`` keeps its log; into
    a file that is that long already, as the log mostly is. Blocks."""
    latencies = []
    with tempfile.NamedTemporaryFile(prefix="duologue-bench-") as file:
        page, number = bytes(PAGES_BYTES), file.fileno()
        os.pwrite(number, bytes(PAGES_BYTES * count), 0)
        os.fsync(number)
        for at in range(count):
            time.sleep(PAUSE_S)
            began = time.perf_counter()
            os.pwrite(number, page, at * PAGES_BYTES)
            os.fdatasync(number)
            latencies.append((time.perf_counter() - began) * 1_000)
    return latencies
