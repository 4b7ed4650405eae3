"""What a log may say of an exception: its kind and where it came from. Its text may quote what people said."""

from __future__ import annotations

from collections.abc import Iterator
from traceback import extract_tb

DEPTH_MAX = 8
"""Causes within causes, groups within groups."""


def described(error: BaseException) -> str:
    """Each exception on a line (causes and members of groups below), with its frames, the innermost last."""
    return "\n".join(_lines(error, 0))


def kind(error: BaseException) -> str:
    """The name of what went wrong: of a group of one, that one's."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return type(error).__name__


def _lines(error: BaseException, depth: int) -> Iterator[str]:
    frames = [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in extract_tb(error.__traceback__)]
    yield "  " * depth + " | ".join([type(error).__name__, *frames])
    if depth == DEPTH_MAX:
        return
    below = list(error.exceptions) if isinstance(error, BaseExceptionGroup) else []
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    for one in (*below, *([cause] if cause is not None else [])):
        yield from _lines(one, depth + 1)
