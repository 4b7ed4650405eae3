"""Finds model plugins by entry point. Nothing else in the repository names a model's module."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import cast

from gpu_runtime.plugin import ENTRY_POINT_GROUP, Loader, ModelUnavailable


def model_names() -> tuple[str, ...]:
    """The names of all installed plugins, sorted."""
    return tuple(sorted({point.name for point in entry_points(group=ENTRY_POINT_GROUP)}))


def no_model(name: str) -> str:
    """Says that there is no plugin called ``name``, and which there are."""
    names = ", ".join(model_names()) or "none: is duologue itself installed in this environment?"
    return f"there is no model called {name!r}; installed models: {names}"


def find_loader(name: str) -> Loader:
    """The plugin called ``name``. Raises ModelUnavailable when there is none, or when its packages are missing."""
    found = entry_points(group=ENTRY_POINT_GROUP, name=name)
    if not found:
        raise ModelUnavailable(no_model(name))
    point = next(iter(found))
    try:
        loader = point.load()
    except ImportError as error:
        raise ModelUnavailable(f"the model {name!r} lacks a package: {error}; install its extra") from error
    if not callable(loader):
        raise ModelUnavailable(f"the model {name!r} is broken: {point.value} is not a loader")
    return cast(Loader, loader)
