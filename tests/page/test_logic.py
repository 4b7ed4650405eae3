"""Runs the tests of the page's pure modules under node's own test runner."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

LOGIC = Path(__file__).parent / "logic"


@pytest.mark.needs("node")
@pytest.mark.parametrize("name", sorted(path.name for path in LOGIC.glob("*.test.mjs")))
def test_the_pages_modules(name: str) -> None:
    done = subprocess.run(
        ["node", "--test", str(LOGIC / name)], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
