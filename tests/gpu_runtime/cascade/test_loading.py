"""What is shown while the cascade's parts load."""

from __future__ import annotations

import pytest

from gpu_runtime.models.cascade.model import Shares


def test_parts_that_load_at_the_same_time_show_one_progress_that_never_goes_back() -> None:
    shown: list[tuple[str, float]] = []
    shares = Shares(lambda what, fraction: shown.append((what, fraction)), ("ear", "mind", "voice"))
    shares.tell("mind", "measured 50%", 0.5)
    shares.tell("ear", "ear", 1.0)
    shares.tell("mind", "measured 40%", 0.4)
    for part in ("mind", "voice"):
        shares.tell(part, part, 1.0)
    assert [what for what, _ in shown] == ["measured 50%", "ear", "measured 40%", "mind", "voice"]
    assert [fraction for _, fraction in shown] == pytest.approx([0.15, 0.45, 0.45, 0.6, 0.9])
