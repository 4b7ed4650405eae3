"""`sessions show`, `replay` and the others take the beginning of an id."""

from __future__ import annotations

import click
import pytest

from adapters.command_line.reading import find_session
from core.ports.store import SessionUnknown
from store.memory import open_memory_store
from tests.store.backends import in_real_time, new_session


@in_real_time
async def test_the_beginning_of_an_id_is_enough() -> None:
    async with open_memory_store() as store:
        for name in ("duplex-4f01aa", "duplex-4f02bb", "openai-4e03cc"):
            await new_session(store, name)
        assert await find_session(store, "duplex-4f02bb") == "duplex-4f02bb"
        assert await find_session(store, "duplex-4f02") == "duplex-4f02bb"
        assert await find_session(store, "4e") == "openai-4e03cc"
        with pytest.raises(click.ClickException, match=r"2 sessions: .*duplex-4f0.*Give more"):
            await find_session(store, "4f0")
        for unknown in ("nothing", ""):
            with pytest.raises(SessionUnknown):
                await find_session(store, unknown)
