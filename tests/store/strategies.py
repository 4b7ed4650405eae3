"""Hypothesis strategies for everything that a log can hold."""

from __future__ import annotations

import typing
from types import NoneType, UnionType
from typing import Any

import attrs
from hypothesis import strategies as st

from core.session.events import EVENT_TYPES, Event, Record

INT64_MAX = 2**63 - 1
_SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(-(2**63), INT64_MAX),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    NoneType: st.none(),
}


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type: the shapes that events use (attrs classes, tuples, unions, scalars)."""
    if annotation in _SIMPLE:
        return _SIMPLE[annotation]
    if attrs.has(annotation):
        fields = typing.get_type_hints(annotation)
        return st.builds(annotation, **{field.name: values(fields[field.name]) for field in attrs.fields(annotation)})
    arguments = typing.get_args(annotation)
    if isinstance(annotation, UnionType):
        return st.one_of(*map(values, arguments))
    if typing.get_origin(annotation) is tuple:
        if arguments[-1] is Ellipsis:
            return st.lists(values(arguments[0]), max_size=3).map(tuple)
        return st.tuples(*map(values, arguments))
    raise TypeError(f"no strategy for {annotation}")


def events() -> st.SearchStrategy[Event]:
    """Events of every type."""
    return st.sampled_from(sorted(EVENT_TYPES)).flatmap(lambda tag: values(EVENT_TYPES[tag]))


def records() -> st.SearchStrategy[Record]:
    """Records with any event, anywhere in a log."""
    ordinals = st.integers(0, INT64_MAX)
    return st.builds(Record, position=st.integers(1, INT64_MAX), epoch=ordinals, at_ns=ordinals, event=events())
