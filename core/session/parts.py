"""Input that is no audio, in the fold: what is shown and typed while a turn is said, images of items, the reference voice.

What is pending goes into the turn that is committed next. Of the conversation's images the model is shown the newest, up to
IMAGES_MAX and IMAGES_BYTES_MAX; the turns that lose theirs keep their words.
"""

from __future__ import annotations

from collections.abc import Iterable

from core.session import events as e
from core.session.config import IMAGE, REFERENCE_AUDIO, TEXT
from core.session.state import IMAGES_A_TURN_MAX, IMAGES_BYTES_MAX, IMAGES_MAX, Image, Input, SessionState
from core.session.telling import tell_anew


def take_in(state: SessionState, event: e.Append) -> None:
    """An append that is no audio."""
    side = state.input
    image = Image(event.digest, event.size_bytes, event.media_type, event.start_ms)
    if event.kind == REFERENCE_AUDIO:
        state.reference = image
    elif event.kind == TEXT:
        side.typed += event.text
        side.typed_bytes += event.size_bytes
        side.pending_bytes += event.size_bytes
    elif event.kind == IMAGE and event.item_id:
        item = state.items.get(event.item_id)
        if item is not None:
            show(state, event.item_id, (*item.images, image))
    elif event.kind == IMAGE:
        side.images.append(image)
        side.pending_bytes += event.size_bytes


def forget_shown_before(side: Input, before_ms: int) -> None:
    """Nobody speaks: what was shown before ``before_ms`` belongs to no turn."""
    while side.images and side.images[0].start_ms < before_ms:
        side.pending_bytes -= side.images.popleft().size_bytes


def take_pending(side: Input) -> tuple[str, tuple[Image, ...]]:
    """What was typed and shown since the last turn; it is pending no more."""
    typed, images = side.typed, tuple(side.images)
    side.pending_bytes -= side.typed_bytes + sum(image.size_bytes for image in images)
    side.typed, side.typed_bytes = "", 0
    side.images.clear()
    return typed.strip(), images


def show(state: SessionState, item_id: str, images: Iterable[Image]) -> None:
    """The item's images from now on; beyond the bounds the oldest items lose theirs."""
    item = state.items[item_id]
    item.images = tuple(images)[-IMAGES_A_TURN_MAX:]
    tell_anew(state, item)
    state.shown.pop(item_id, None)
    if item.images:
        state.shown[item_id] = None
    while _too_many(state):
        hide(state, next(iter(state.shown)))


def hide(state: SessionState, item_id: str) -> None:
    """The item, if it is still there, shows nothing any more."""
    state.shown.pop(item_id, None)
    item = state.items.get(item_id)
    if item is not None and item.images:
        item.images = ()
        tell_anew(state, item)


def _too_many(state: SessionState) -> bool:
    shown = [image for item_id in state.shown for image in state.items[item_id].images]
    return len(shown) > IMAGES_MAX or sum(image.size_bytes for image in shown) > IMAGES_BYTES_MAX


def bodies_needed(state: SessionState) -> tuple[str, ...]:
    """Digests of everything that a new worker must be fed."""
    unread = (chunk.digest for turn in state.input.unread.values() for chunk in turn.chunks)
    audio = (chunk.digest for chunk in state.input.pending)
    told = (image.digest for item_id in state.shown for image in state.items[item_id].images)
    pending = (image.digest for image in state.input.images)
    reference = (state.reference.digest,) if state.reference is not None else ()
    return (*reference, *told, *unread, *audio, *pending)


def amount_needed(state: SessionState) -> tuple[int, int]:
    """How many those are, and their bytes."""
    side, reference = state.input, state.reference
    told = [image.size_bytes for item_id in state.shown for image in state.items[item_id].images]
    unread = [chunk.size_bytes for turn in side.unread.values() for chunk in turn.chunks]
    items = len(unread) + len(side.pending) + len(side.images) + len(told) + (reference is not None)
    size_bytes = side.pending_bytes - side.typed_bytes + sum(unread) + sum(told)
    return items, size_bytes + (reference.size_bytes if reference else 0)
