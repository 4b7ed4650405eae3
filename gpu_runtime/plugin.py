"""What a model plugin is. Plugins are found by the entry-point group ``duologue.models``; the entry is a ``Loader``.
``docs/plugins.md`` has a whole one.

A plugin runs in the worker process and knows nothing of sessions' logs, sockets or clients: it takes the port's messages
and emits the port's messages. ``handle`` is called from one thread, in order, and must return at once (a millisecond);
real work goes to the plugin's own threads. ``emit`` may be called from any thread and never blocks for long.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from core.ports.runtime import Capabilities, FromRuntime, ModelStatistics, ToRuntime

ENTRY_POINT_GROUP = "duologue.models"

Emit = Callable[[FromRuntime], None]
Progress = Callable[[str, float], None]
"""(what is being loaded, fraction done in 0..1), for a progress bar while the worker warms up."""


class Model(Protocol):
    """A loaded model that hosts ears and lanes."""

    @property
    def capabilities(self) -> Capabilities:
        """Fixed once loaded."""

    def handle(self, message: ToRuntime) -> None:
        """Take one message. Unknown sessions and lanes of the past are ignored."""

    def statistics(self) -> ModelStatistics:
        """Now, at once: asked about once a second, on the thread that calls ``handle``. ``ModelStatistics()`` will do."""

    def close(self) -> None:
        """Stop threads, free memory."""


class Loader(Protocol):
    """Loads and warms the model up. ``settings`` are the user's ``--model-option key=value`` and ``[model]`` table, all
    strings, numbers or booleans. Raises ModelUnavailable with a sentence that says what to do."""

    def __call__(self, settings: Mapping[str, Any], emit: Emit, progress: Progress) -> Model: ...


class ModelUnavailable(Exception):
    """Weights or packages are missing, or a setting is wrong. The message says what to do next."""


def pip_command(install: str) -> str:
    """``pip install ...`` for this very environment: a bare pip would often be another one's."""
    return f"{sys.executable} -m {install}"
