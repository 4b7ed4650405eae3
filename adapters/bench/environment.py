"""What a figure was measured on: without it a figure is a rumour."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path

PACKAGES = ("duologue", "trio", "trio-websocket", "sqlalchemy", "msgspec", "ctranslate2", "onnxruntime", "xllamacpp")


def describe(seed: int) -> str:
    """Machine, versions, command and seed, in a few lines."""
    versions = ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    load = os.getloadavg()[0]
    return "\n".join(
        (
            f"machine   {_processor()}, {os.cpu_count()} cores, {_memory_gib():.0f} GiB, {platform.system()}",
            f"python    {platform.python_version()}; {versions}",
            f"command   {' '.join(['duologue', *sys.argv[1:]])}",
            f"seed      {seed}; load average before the run {load:.2f}",
        )
    )


def rss_mib(pid: int) -> float:
    """Resident memory of a process, in MiB. Raises FileNotFoundError when it is gone."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def descendants(pid: int) -> list[int]:
    """The process and everything that it started."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            found.extend(int(child) for child in task.read_text().split())
    return found


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "-"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
