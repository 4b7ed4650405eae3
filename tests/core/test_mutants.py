"""Every mutant of the product is caught, and by the promise that it breaks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import core.actors.supervisor
import store.planning
from tests import virtual_time
from tests.core.hunts import HUNTS
from tests.core.mutants import MUTANTS
from tests.core.mutating import Mutant, switch_on

TABLE = Path(__file__).parents[2] / "docs" / "mutants.md"
HEADER = """# Mutants

Each line is a deliberate fault in the product that the tests switch on by its name (`tests/core/mutants.py`), the promise
that catches it, and the story in which it shows (`tests/core/hunts.py`). `pytest -m mutant` runs them all; one that is not
caught fails. The promises are those of [guarantees](guarantees.md).

| mutant | what is wrong | promise | story |
|---|---|---|---|
"""


def run(hunt: str) -> BaseException | None:
    """Play a hunt in virtual time; what it ended with."""
    try:
        virtual_time.run(HUNTS[hunt])
    except (AssertionError, BaseExceptionGroup) as error:
        return error
    return None


def leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


@pytest.mark.limit(wall_s=180)
@pytest.mark.parametrize("hunt", HUNTS)
def test_without_a_mutant_every_hunt_ends_well(hunt: str) -> None:
    error = run(hunt)
    assert error is None, list(leaves(error))


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_mutant_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    logging.disable(logging.CRITICAL)
    try:
        switch_on(mutant, monkeypatch)
        error = run(mutant.hunt)
    finally:
        logging.disable(logging.NOTSET)
    assert error is not None, f"{mutant.name} is not caught"
    caught = [str(leaf) for leaf in leaves(error)]
    assert any(text.startswith(mutant.promise) for text in caught), caught


def test_names_are_names() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 20
    assert {mutant.hunt for mutant in MUTANTS} == set(HUNTS)
    assert core.actors.supervisor
    assert store.planning


def test_the_table_in_the_docs_is_this_one() -> None:
    rows = "".join(f"| `{m.name}` | {m.wrong} | {m.promise} | `{m.hunt}` |\n" for m in MUTANTS)
    assert TABLE.read_text() == HEADER + rows, "python -m tests.core.test_mutants writes it"


if __name__ == "__main__":
    TABLE.write_text(HEADER + "".join(f"| `{m.name}` | {m.wrong} | {m.promise} | `{m.hunt}` |\n" for m in MUTANTS))
