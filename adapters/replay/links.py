"""The chain of a log, checked link by link with what a replay comes to. Each link is checked by the rule by which it was made
(core.session.digest): a log that an older version wrote, or wrote a part of, is held to what that version promised.
"""

from __future__ import annotations

from collections import Counter

import attrs

from core.ports.store import Row, StoredBatch
from core.session import events as e
from core.session.digest import (
    CHAIN_BEGIN_BYTES,
    CHAIN_RULE,
    CHAIN_START,
    DIGEST_BYTES,
    NOTHING_CAUSED,
    caused_digest,
    chain_link_begin,
    first_chain_link,
    whole_chain_link,
)

EFFECTS_ONLY, WHOLE = 1, CHAIN_RULE
"""Rules: under the first one a link says nothing of the records that caused no effect and no wire event."""

STORE_WRITES = (e.SessionOpened, e.OwnerChanged)
"""Written by the store itself when a term is taken: they cause nothing."""


def caused_of(batch: StoredBatch, caused: bytes) -> bytes:
    """``caused_digest`` of what a batch caused, encoded."""
    return NOTHING_CAUSED if _is_the_stores(batch) else caused_digest(caused)


def _is_the_stores(batch: StoredBatch) -> bool:
    return isinstance(batch.records[0].event, STORE_WRITES)


@attrs.define
class Links:
    """``last``: the link before the next batch. ``batches``: how many were checked by which rule."""

    last: bytes = CHAIN_START
    batches: Counter[int] = attrs.field(factory=Counter)

    def check_records(self, batch: StoredBatch) -> str | None:
        """What is wrong with the next batch as it is stored, in words. To be asked before it is folded."""
        rule = self._rule_of(batch)
        if rule == EFFECTS_ONLY:
            return None
        if rule != WHOLE:
            return f"its digest was made by rule {rule}, which this version does not know"
        begin = chain_link_begin(self.last, batch.batch_id, batch.term, map(Row.line, batch.rows))
        return None if batch.chain.startswith(begin) else "its records are not those that were written"

    def check_caused(self, batch: StoredBatch, caused: bytes) -> str | None:
        """What is wrong with what the batch caused, in words; ``caused``: effects and wire events, encoded. The beginning of
        its link is what ``check_records`` has looked at. The next batch is expected from here on."""
        rule, previous = self._rule_of(batch), self.last
        self.batches[rule] += 1
        self.last = batch.chain
        if rule == EFFECTS_ONLY:
            expected = previous if _is_the_stores(batch) else first_chain_link(previous, caused)
        else:
            expected = whole_chain_link(batch.chain[:CHAIN_BEGIN_BYTES], caused_of(batch, caused))
        return None if batch.chain == expected else "effects or wire events differ from the recorded ones"

    def _rule_of(self, batch: StoredBatch) -> int:
        """An older server leaves the chain as it is when it takes over, also one that a newer server began."""
        if len(batch.chain) == DIGEST_BYTES or (batch.chain == self.last and _is_the_stores(batch)):
            return EFFECTS_ONLY
        return batch.chain[0] if batch.chain else 0
