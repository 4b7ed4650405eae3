"""Plugins that do not exist in the repository: written to a folder which a worker process then sees as installed."""

from __future__ import annotations

from pathlib import Path

HEAD = """
import os, subprocess, sys, threading, time
from core.ports.runtime import Capabilities, ModelStatistics
from gpu_runtime.plugin import ModelUnavailable

class Quiet:
    capabilities = Capabilities(model="quiet", unit_ms=20)
    def __init__(self, emit): self.emit = emit
    def handle(self, message): pass
    def statistics(self): return ModelStatistics()
    def close(self): pass
"""


def install(folder: Path, name: str, body: str) -> None:
    """A distribution with one plugin ``name``; ``body`` defines ``load(settings, emit, progress)``, HEAD before it."""
    (folder / f"plugin_{name}.py").write_text(HEAD + body)
    info = folder / f"plugin_{name}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: plugin-{name}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[duologue.models]\n{name} = plugin_{name}:load\n")
