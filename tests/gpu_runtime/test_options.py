"""Options of models: one reader for all of them."""

from __future__ import annotations

import math
from typing import Any

import attrs
import pytest

from gpu_runtime.models.cascade.settings import Settings
from gpu_runtime.models.scripted import ScriptedSettings
from gpu_runtime.options import read_options
from gpu_runtime.plugin import ModelUnavailable


@attrs.frozen
class Knobs:
    loud: bool = False
    count: int = 3
    share: float = 0.5
    name: str = ""


LIMITS = {"count": (1, 1_000_000), "share": (0, math.inf)}


def read(**given: Any) -> Knobs:
    return read_options(Knobs, given, "the box", LIMITS)


def test_options_come_as_words_or_as_values() -> None:
    assert read() == Knobs()
    assert read(loud="Yes", count=" 7 ", share="1e-3", name=5) == Knobs(True, 7, 0.001, "5")
    assert read(loud=False, count=7, share=1) == Knobs(False, 7, 1.0)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"colour": 1, "b": 2}, "the box has no option b, colour; there are: count, loud, name, share"),
        ({"loud": "perhaps"}, "the box's option loud must be true or false, not 'perhaps'"),
        ({"count": 2.5}, "the box's option count must be a whole number, not 2.5"),
        ({"count": True}, "the box's option count must be a whole number, not True"),
        ({"count": 0}, "the box's option count must be 1 to 1000000, not 0"),
        ({"share": "nan"}, "the box's option share must be a number, not 'nan'"),
        ({"share": "inf"}, "the box's option share must be a number, not 'inf'"),
        ({"share": -0.1}, "the box's option share must be 0 or more, not -0.1"),
        ({"share": None}, "the box's option share must be a number, not None"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelUnavailable) as caught:
        read(**given)
    assert str(caught.value) == says


@pytest.mark.parametrize("settings", [Settings, ScriptedSettings])
def test_every_model_takes_its_own_defaults(settings: Any) -> None:
    """Each limit names an option that there is, and lets its default pass."""
    defaults = attrs.asdict(settings())
    assert (
        settings.parse(defaults) == settings() == settings.parse({name: str(value) for name, value in defaults.items()})
    )
