"""How one item is told to the model, and how long that is in tokens.

A barge-in tells the whole conversation anew, and all but the end of it is as it was. So an item keeps how it is told
(``Item.told``), and the window that of its first items together (``Window.told``), until an event changes what they are made
of: an item's text or images, what was made and heard of its answer, which items there are. Whoever changes one of these in
the fold says so here (``tell_anew``, ``tell_all_anew``). The property tests compare what is kept with what telling anew
gives, after every step.

Tokens are estimated from what is known here: TURN_TOKENS a turn and one for each BYTES_PER_TOKEN bytes of UTF-8; a turn
that has only been heard as audio counts one for each AUDIO_MS_PER_TOKEN, an image IMAGE_TOKENS.
"""

from __future__ import annotations

from itertools import islice

from core.session.effects import HistoryTurn
from core.session.ledger import heard_text
from core.session.state import Item, SessionState, Told, ToldPrefix

BYTES_PER_TOKEN = 4
TURN_TOKENS = 8
"""What a chat template puts around a turn."""
AUDIO_MS_PER_TOKEN = 40
IMAGE_TOKENS = 256

TAIL_ITEMS = 4
"""The newest items are told one by one: they are those that still change."""


def text_tokens(text: str) -> int:
    """An estimate of a text's tokens, what stands around it included."""
    size = len(text) if text.isascii() else len(text.encode())
    return TURN_TOKENS + size // BYTES_PER_TOKEN


def turn_tokens(turn: HistoryTurn, item: Item) -> int:
    """The same of a turn of ``item``."""
    shown = IMAGE_TOKENS * len(turn.images)
    if turn.text is None:
        return TURN_TOKENS + item.audio_ms // AUDIO_MS_PER_TOKEN + shown
    return text_tokens(turn.text) + shown


def tell_anew(state: SessionState, item: Item) -> None:
    """Something of ``item`` has changed."""
    item.told = None
    if item.item_id in state.window.told.item_ids:
        tell_all_anew(state)


def tell_all_anew(state: SessionState) -> None:
    """Items have left the window, or come into its midst."""
    state.window.told = ToldPrefix()


def told_prefix(state: SessionState) -> ToldPrefix:
    """How all but the newest items of the window are told."""
    window, kept = state.window, state.window.told
    for item_id in islice(window.items, len(kept.item_ids), max(0, len(window.items) - TAIL_ITEMS)):
        told = told_of(state, state.items[item_id])
        kept.item_ids.add(item_id)
        kept.turns.extend(told.turns)
        kept.parts.extend(told.parts)
        kept.tokens += told.tokens
    return kept


def told_of(state: SessionState, item: Item) -> Told:
    """How ``item`` is told; kept until that changes."""
    told = item.told
    if told is None:
        told = item.told = tell(state, item)
    return told


def tell(state: SessionState, item: Item, heard_ms: int | None = None) -> Told:
    """Work it out. ``heard_ms``: so much of the answer counts as heard, instead of what is recorded."""
    turns = []
    if item.typed and item.text is None:  # what was said with it, the model transcribes itself
        turns.append(HistoryTurn(item.role, item.typed, item.item_id))
    turn = _turn(state, item, heard_ms)
    if turn is not None:
        turns.append(turn)
    tokens = sum(turn_tokens(turn, item) for turn in turns)
    return Told(tuple(turns), tuple((turn.item_id, len(turn.text or "")) for turn in turns), tokens, turn)


def _turn(state: SessionState, item: Item, heard_ms: int | None) -> HistoryTurn | None:
    """What was said in it, as far as it was heard."""
    response = state.responses.get(item.response_id) if item.response_id is not None else None
    if response is None:
        role, text = item.role, item.text
        if item.typed and text is not None:
            text = f"{item.typed} {text}".strip()
        silent = not text and not item.images and not item.name
        if silent and (role == "assistant" or (role == "user" and text is not None)):
            return None
    else:
        role, text = "assistant", heard_text(response, heard_ms)
        if not text or response.out_of_band:
            return None
    images = tuple(image.digest for image in item.images)
    return HistoryTurn(role, text, item.item_id, images, item.name, item.call_id)
