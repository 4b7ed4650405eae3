"""Other people's clients, fetched once, unmodified, into a cache folder outside the repository ($XDG_CACHE_HOME).

Only what a client itself needs is kept of its package: vLLM-Omni and Moshi are servers of many gigabytes whose client
modules need next to nothing, so an empty parent package stands in for the real one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

VLLM_OMNI = "vllm-omni==0.30.0"
MOSHI = "moshi==0.2.13"
AIOHTTP = "aiohttp==3.11.18"
AGENTS_REALTIME = ("@openai/agents-realtime@0.20.0", "zod@4")
INSTALL_S = 300


def cache_folder() -> Path:
    """Where fetched clients stay between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "duologue-interop"


def vllm_omni() -> Path:
    """A folder for ``sys.path`` with vLLM-Omni's ``clients`` and ``protocol``."""
    return _once(VLLM_OMNI, lambda folder: _unpack(VLLM_OMNI, folder, ("vllm_omni/clients/", "vllm_omni/protocol/")))


def moshi_client() -> Path:
    """A folder for PYTHONPATH with ``moshi.client`` and the HTTP library that it needs (sphn comes with our extra)."""

    def install(folder: Path) -> None:
        _unpack(MOSHI, folder, ("moshi/client.py", "moshi/client_utils.py"))
        _call(sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), AIOHTTP)

    return _once(f"{MOSHI}-{AIOHTTP}", install)


def agents_realtime() -> Path:
    """A folder whose ``node_modules`` has @openai/agents-realtime."""

    def install(folder: Path) -> None:
        (folder / "package.json").write_text('{"private": true, "type": "module"}\n')
        _call("npm", "install", "--no-audit", "--no-fund", "--loglevel=error", *AGENTS_REALTIME, folder=folder)

    return _once("agents-realtime-0.20.0", install)


def _once(name: str, install: Callable[[Path], None]) -> Path:
    """The folder of that name, filled by ``install`` unless an earlier run has done so."""
    folder = cache_folder() / name.replace("==", "-")
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        install(unfinished)
        try:
            unfinished.rename(folder)
        except OSError:  # another run was faster
            shutil.rmtree(unfinished)
    return folder


def _unpack(requirement: str, folder: Path, prefixes: tuple[str, ...]) -> None:
    """Those files of a wheel, under an empty parent package."""
    wheels = folder / "wheels"
    _call(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels), requirement)
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(prefixes):
                archive.extract(name, folder)
    shutil.rmtree(wheels)
    (folder / prefixes[0].partition("/")[0] / "__init__.py").write_text("")


def _call(*command: str, folder: Path | None = None) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
