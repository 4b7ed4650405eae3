"""``duologue`` with faults: each crashes something when a client says its name, with an exception that quotes what was
said."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

from adapters.command_line.main import main
from adapters.server.conversation import Conversation, Incoming
from core.actors.housekeeping import Housekeeper
from core.actors.session import Session
from store.queueing import Item
from store.sql.sql_store import SqlStore

CONNECTION, SESSION, LIBRARY = "crash the connection", "crash the session", "crash a library"
WRITER, NO_WRITER, PROCESS = "crash the writer", "end the writer", "crash the process"

for_good = threading.Event()
"""The writer trips at every group from here on."""

carry_out, dispatch, execute = Conversation._carry_out, Session._dispatch, SqlStore._execute


async def faulty_carry_out(self: Conversation, incoming: Incoming) -> None:
    said = repr(incoming)
    if CONNECTION in said:
        raise RuntimeError(said)
    if LIBRARY in said:
        try:
            raise RuntimeError(said) from KeyError(said)
        except RuntimeError:
            logging.getLogger("sqlalchemy.pool").exception("Exception during reset or similar")
    if PROCESS in said:

        async def look_around(_self: Housekeeper) -> int:
            raise RuntimeError(said)

        Housekeeper.look_around = look_around  # type: ignore[method-assign]
    await carry_out(self, incoming)


def faulty_dispatch(self: Session, entry: Any) -> None:
    if SESSION in repr(entry):
        raise KeyError(repr(entry))
    dispatch(self, entry)


def faulty_execute(self: SqlStore, items: Sequence[Item]) -> Any:
    if NO_WRITER in repr(items):
        for_good.set()
    if WRITER in repr(items) or for_good.is_set():
        raise ExceptionGroup(repr(items), [ValueError(repr(items))])
    return execute(self, items)


if __name__ == "__main__":  # here only: the tests import this module for the faults' names
    Conversation._carry_out = faulty_carry_out  # type: ignore[method-assign]
    Session._dispatch = faulty_dispatch  # type: ignore[method-assign]
    SqlStore._execute = faulty_execute  # type: ignore[method-assign]
    main()
