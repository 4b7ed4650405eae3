"""The scripted model: deterministic, without weights, without randomness. For tests, load, and trying the server out.

It hears loudness: a segment begins with the first loud 20 ms frame and ends when ``silence_duration_ms`` of audio was
quiet, and its transcript is ``turn N``. Without turn detection it says nothing on its own, and reads each committed
turn as ``turn N`` (the N-th commit), or ``""`` when nothing loud was in it.

It answers with words that show what it was told: the number of history turns, then the last user text (up to eight
words), then filling words. So after one turn it says ``1 turn 1 a1w3 a1w4 ...``. A last user text with the word
``long`` asks for a long answer, ``units=N`` for one of N units. Where there is something to show for it, ``saw=N`` (images of
the history that it was fed; ``missing=N``: that it was not), ``voice=XXXX`` (the beginning of the reference voice's digest)
and ``got`` with a tool result's first words come before the filling words.

In a session with tools, a last user text with ``call=NAME`` asks for the function NAME, with ``{"text": the text}`` as
arguments; so does a tool choice that requires one (the named one, or the first). Once its result is in the history, it is
told and not asked for again. Call ids are ``call-1``, ``call-2`` ... in a session.

The audio is a soft tone whose lowest bits name epoch, response and unit (``identify``), so that a test can tell a stale
chunk from a fresh one.

The settings, faults included, are the fields of ``ScriptedSettings``. ``machine`` makes the bare step machine for
simulations under a mock clock; ``load`` is the plugin.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from gpu_runtime.models.scripted.identity import Identity, identify, identify_all
from gpu_runtime.models.scripted.machine import ScriptedMachine
from gpu_runtime.models.scripted.settings import ScriptedSettings
from gpu_runtime.plugin import Emit, Model, ModelUnavailable, Progress
from gpu_runtime.stepped import ThreadShell

__all__ = [
    "Identity",
    "ScriptedMachine",
    "ScriptedSettings",
    "identify",
    "identify_all",
    "load",
    "machine",
]

LOAD_STEPS = 5


def machine(wall_ns: int = 0, **settings: Any) -> ScriptedMachine:
    """The step machine alone. Raises ModelUnavailable for a wrong setting."""
    return ScriptedMachine(ScriptedSettings.parse(settings), wall_ns)


def load(settings: Mapping[str, Any], emit: Emit, progress: Progress) -> Model:
    """The plugin's Loader. Raises ModelUnavailable for a wrong setting, or when ``load_error`` asks for it."""
    read = ScriptedSettings.parse(settings)
    for step in range(LOAD_STEPS):
        progress("reading the script", step / LOAD_STEPS)
        time.sleep(read.load_ms / 1000 / LOAD_STEPS)
    if read.load_error:
        raise ModelUnavailable(read.load_error)
    progress("reading the script", 1.0)
    wall_ns = time.time_ns() - time.monotonic_ns()
    return ThreadShell(ScriptedMachine(read, wall_ns), emit)
