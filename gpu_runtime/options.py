"""A model's options: what a user gives with ``--model-option`` or in the ``[model]`` table, read into a class of settings.

The class is frozen attrs; each field has a default of type str, int, float or bool, which is the option's type.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import attrs

from gpu_runtime.plugin import ModelUnavailable

S = TypeVar("S", bound=attrs.AttrsInstance)

Limits = Mapping[str, tuple[float, float]]
"""Option -> (lowest, highest); ``math.inf`` where there is no highest."""

_KINDS: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number"}
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


def read_options(cls: type[S], given: Mapping[str, Any], model: str, limits: Limits) -> S:
    """``given`` holds strings, numbers or booleans; ``model`` is how messages call it. Raises ModelUnavailable with a
    sentence that names the option and what it may be."""
    kinds = {field.name: type(field.default) for field in attrs.fields(cls)}
    unknown = sorted(set(given) - set(kinds))
    if unknown:
        raise ModelUnavailable(f"{model} has no option {', '.join(unknown)}; there are: {', '.join(sorted(kinds))}")
    values = {name: _read(f"{model}'s option {name}", value, kinds[name]) for name, value in given.items()}
    for name, value in values.items():
        low, high = limits.get(name, (-math.inf, math.inf))
        if kinds[name] in (int, float) and not low <= value <= high:
            allowed = f"{low:g} or more" if math.isinf(high) else f"{low:.7g} to {high:.7g}"
            raise ModelUnavailable(f"{model}'s option {name} must be {allowed}, not {value}")
    return cls(**values)


def _read(what: str, value: Any, kind: type) -> Any:
    word = str(value).strip()
    if kind is str:
        return str(value)
    if kind is bool and word.lower() in (*_TRUE, *_FALSE):
        return word.lower() in _TRUE
    if kind is not bool:
        try:
            number = kind(word)
            if math.isfinite(number):
                return number
        except ValueError:
            pass
    raise ModelUnavailable(f"{what} must be {_KINDS[kind]}, not {value!r}")
