"""The program on the page about clients runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from adapters.server.settings import ServerSettings
from tests.interop.servers import served

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.realtime
def test_the_program_with_our_client_hears_a_whole_answer(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "clients.md").read_text("utf-8")
    program = re.findall(r"^```python\n(# duplex\.py.*?)^```$", page, re.MULTILINE | re.DOTALL)[0]
    question = re.findall(r"^\$ \.venv/bin/python duplex\.py (\S+)$", page, re.MULTILINE)[0]
    (tmp_path / "duplex.py").write_text(program)
    with served(ServerSettings(port=0, model="scripted"), answer_units=8) as server:
        url = server.base_url.replace("http", "ws", 1) + "/realtime"
        command = [sys.executable, str(tmp_path / "duplex.py"), str(ROOT / question), url]
        ran = subprocess.run(command, cwd=ROOT, check=True, timeout=50, capture_output=True, text=True)
    assert ran.stdout.startswith("completed, heard for 1600 ms: 1 turn 1")
