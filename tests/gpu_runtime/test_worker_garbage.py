"""A worker's garbage collector."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from core.ports.runtime import CloseSession
from gpu_runtime.host import open_worker
from tests.gpu_runtime.plugins import install
from tests.gpu_runtime.test_worker_process import until

pytestmark = [pytest.mark.crash, pytest.mark.realtime]

FULL = """
import gc
from core.ports.runtime import Heard
class Full(Quiet):
    loaded = [[] for _ in range(1000)]
    def handle(self, message):
        searched = {id(one) for one in gc.get_objects()}
        self.emit(Heard(message.session, "found", str(sum(id(one) in searched for one in self.loaded))))
def load(settings, emit, progress): return Full(emit)
"""


async def test_what_was_loaded_is_not_searched_for_garbage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With vLLM each search took half a second, three times a minute, and every session waited for it."""
    install(tmp_path, "full", textwrap.dedent(FULL))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    async with open_worker("full") as runtime:
        heard: list[str] = []
        runtime.subscribe("s", lambda message: heard.append(getattr(message, "text", "lost")))
        runtime.send(CloseSession("s"))
        await until(lambda: bool(heard))
        assert heard == ["0"]
