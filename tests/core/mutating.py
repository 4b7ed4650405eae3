"""How a deliberate fault is put into the product: an edit of one of its functions' source. An edit that does not fit any more
is an error, so a list of them cannot rot.
"""

from __future__ import annotations
import __future__

import inspect
import sys
import textwrap
from typing import Any

import attrs
import pytest


@attrs.frozen
class Edit:
    """``where``: ``module:function`` or ``module:Class.method``."""

    where: str
    old: str
    new: str


@attrs.frozen
class Mutant:
    """``promise`` is what is broken, ``hunt`` the name of the story that shows it (tests/core/hunts.py)."""

    name: str
    promise: str
    hunt: str
    wrong: str
    edits: tuple[Edit, ...]


def switch_on(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the mutant's functions in the place of the product's, wherever they are known."""
    for edit in mutant.edits:
        _apply(edit, monkeypatch)


def _apply(edit: Edit, monkeypatch: pytest.MonkeyPatch) -> None:
    module_name, _, path = edit.where.partition(":")
    module = sys.modules[module_name]
    owner: Any = module
    *classes, name = path.split(".")
    for part in classes:
        owner = getattr(owner, part)
    original = inspect.getattr_static(owner, name)
    function = original.fget if isinstance(original, property) else original
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(edit.old) == 1, f"{edit.where} has no (or no single) {edit.old!r}"
    code = compile(
        source.replace(edit.old, edit.new), f"<mutant of {edit.where}>", "exec", __future__.annotations.compiler_flag
    )
    made: dict[str, Any] = {}
    exec(code, vars(module), made)
    if classes:
        monkeypatch.setattr(owner, name, made[name])
    else:
        _replace_everywhere(function, made[name], monkeypatch)


def _replace_everywhere(old: Any, new: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every module that has imported it, and in every dispatch table."""
    for module_name, module in tuple(sys.modules.items()):
        if not module_name.startswith(("core.", "store.", "tests.core.")):
            continue
        for name, value in tuple(vars(module).items()):
            if value is old:
                monkeypatch.setattr(module, name, new)
            elif type(value) is dict:
                for key, entry in tuple(value.items()):
                    if entry is old:
                        monkeypatch.setitem(value, key, new)
