"""What a step caused, as bytes for the session's chained digest: the same on every server and in every replay. A change
here is a change of every chain: it would need new projection versions.

A field that an effect got after logs had been written is left out while it has its default, so that the chains of those
logs stay what they are.
"""

from __future__ import annotations

from typing import Any

import attrs
import msgspec

from core.session import effects as fx

_DEFAULTS: dict[type, tuple[object, object]] = {
    fx.OpenSession: ((), "auto"),
    fx.ConfigureSession: ((), "auto"),
    fx.Respond: (None, None),
}
"""Effect -> the defaults of its later fields."""


def encode_caused(caused: Any) -> bytes:
    """(effects, frames), with object keys sorted."""
    effects, frames = caused
    return msgspec.json.encode(([_plain(effect) for effect in effects], frames), order="deterministic")


def _plain(effect: fx.Effect) -> object:
    defaults = _DEFAULTS.get(type(effect))
    if defaults is None and not isinstance(effect, fx.OpenLane):
        return effect
    made: dict[str, Any] = {name: getattr(effect, name) for name in _FIELDS[type(effect)]}
    if defaults is not None and (made["tools"], made["tool_choice"]) == defaults:
        del made["tools"], made["tool_choice"]
    if "history" in made:
        made["history"] = [_turn(turn) for turn in made["history"]]
    return made


def _turn(turn: fx.HistoryTurn) -> object:
    if turn.images or turn.name or turn.call_id:
        return turn
    return {"role": turn.role, "text": turn.text, "item_id": turn.item_id}


_FIELDS = {kind: tuple(attrs.fields_dict(kind)) for kind in (*_DEFAULTS, fx.OpenLane)}
