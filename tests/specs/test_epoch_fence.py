"""The model of the fences: the claims hold in every interleaving, and without any one of the rules some claim fails."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

SPECS = Path(__file__).resolve().parents[2] / "specs"
CHECK = SPECS / "check.sh"


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([CHECK, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.needs("spin", "gcc")
@pytest.mark.limit(wall_s=900)
@pytest.mark.parametrize("row", check("list").stdout.splitlines())
def test_the_model_is_as_expected(row: str) -> None:
    result = check("row", row)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith("ok")


def test_every_mutant_and_every_claim_of_the_model_is_in_the_table() -> None:
    model = (SPECS / "epoch_fence.pml").read_text()
    rows = "\n".join(check("list").stdout.splitlines())
    flags = set(re.findall(r"#ifn?def ([A-Z_]+)", model)) - {"ONLY", "LOG_MAX", "OUTBOX_MAX"}
    claims = set(re.findall(r"CLAIM\(([A-Z]+),", model))
    assert len(flags) >= 9
    assert {flag for flag in flags if flag not in rows} == set(), "a mutant that nobody runs"
    assert {claim for claim in claims if f"breaks {claim}" not in rows} == set(), "a claim that no mutant breaks"
