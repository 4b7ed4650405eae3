"""`duologue replay`: fold a session's log again and see whether it is what really happened."""

from __future__ import annotations

import json
from collections.abc import Callable

import attrs
import click
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table
from rich.text import Text

from adapters.command_line.reading import find_session, no_session, one_line, reading, run, store_option
from adapters.replay.conversation import Line, conversation
from adapters.replay.replaying import Replay, SessionUnreadable, replay_session
from adapters.wire.caused import encode_caused
from adapters.wire.projections import make_projection
from core.ports.store import SessionUnknown

EXACT, DIFFERS, DAMAGED = 0, 1, 3


@click.command()
@click.argument("session")
@store_option
@click.option("--json", "as_json", is_flag=True, help="The verdict and the conversation as JSON, for other programs.")
def replay(session: str, store_url: str, as_json: bool) -> None:
    """Replay a recorded session: fold its log, check that every record and body, the effects and the wire stream are those
    recorded, and print the conversation. What was made and not heard is struck out, or in brackets where there is no
    terminal. The beginning of an id is enough.

    Exit codes: 0 the replay is exact (of a session that was erased: what the erasure left), 1 it differs, 2 there is no
    such session or store, 3 the log, a body or the store is damaged. With 1 and 3 the position is named, where the store
    can tell it.

    \b
    Example: duologue sessions list; duologue replay duplex-4f...
    """
    damage: SessionUnreadable | None = None
    try:
        result = run(_replay, store_url, session)
    except SessionUnknown:
        raise no_session(session) from None
    except SessionUnreadable as fault:
        result, damage = fault.replay, fault
    lines = conversation(result)
    if as_json:
        verdict = _summary(result, damage)
        click.echo(json.dumps({**verdict, "turns": [attrs.asdict(line) for line in lines]}, indent=2))
    else:
        console = Console(soft_wrap=False)
        _print_lines(console, lines)
        _print_verdict(console, result, damage)
    if damage is None and result.mismatch is not None:
        raise SystemExit(DIFFERS)
    raise SystemExit(DAMAGED if damage is not None or result.bodies else EXACT)


async def _replay(url: str, session: str) -> Replay:
    async with reading(url) as store:
        session = await find_session(store, session)
        console = Console(stderr=True)
        with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
            return await replay_session(store, session, make_projection, encode_caused, _shown(bar))


def _shown(bar: Progress) -> Callable[[int, int], None]:
    """Moves the bar; logs of one page need none."""
    tasks: list[TaskID] = []

    def show(position: int, end: int) -> None:
        if not tasks and position >= end:
            return
        if not tasks:
            tasks.append(bar.add_task("replaying", total=end))
        bar.update(tasks[0], completed=position)

    return show


def _summary(result: Replay, damage: SessionUnreadable | None) -> dict[str, object]:
    return {
        "session": result.state.session_id,
        "exact": result.exact and damage is None,
        "mismatch": None if result.mismatch is None else attrs.asdict(result.mismatch),
        "damage": None if damage is None else {"position": damage.position, "problem": str(damage)},
        "bodies": [attrs.asdict(fault) for fault in result.bodies],
        "erased": result.erased,
        "events": len(result.records),
        "batches": result.batches,
        "batches_by_an_older_rule": result.effects_only,
        "wire_events": len(result.frames),
        "phase": result.state.phase.value,
        "epoch": result.state.epoch,
    }


def _print_lines(console: Console, lines: list[Line]) -> None:
    """On a terminal a column for each part; in a pipe one line a turn: who reads it further counts lines."""
    piped = not console.is_terminal
    table = Table.grid(padding=(0, 2))
    for ratio in (None, None, 1):
        table.add_column(ratio=ratio, overflow="fold")
    for line in lines:
        at = Text(f"{line.at_ms / 1000:8.2f} s", style="dim")
        speaker = Text(f"{line.speaker:>9}", style="bold cyan" if line.speaker == "user" else "bold green")
        said = Text(one_line(line.text))
        if cut := one_line(line.cut):
            said.append(f" [not heard: {cut}]" if piped else f" {cut}", style="strike dim")
        if line.notes:
            said.append(f"  ({', '.join(line.notes)})", style="dim italic")
        if piped:
            console.print(Text("  ").join((at, speaker, said)), soft_wrap=True)
        else:
            table.add_row(at, speaker, said)
    if table.rows:
        console.print(table)


def _print_verdict(console: Console, result: Replay, damage: SessionUnreadable | None) -> None:
    counts = f"{len(result.records)} events, {result.batches} batches, {len(result.frames)} wire events"
    if damage is not None:
        words = f" from position {damage.position} on: {one_line(str(damage))}; before that {counts}"
        verdict = Text.assemble(("damaged", "red"), words)
    elif result.mismatch is not None:
        where = f"position {result.mismatch.position} (batch {result.mismatch.batch_id})"
        bodies = f"; bodies that are missing or damaged: {len(result.bodies)}" if result.bodies else ""
        verdict = Text.assemble(("differs", "red"), f" at {where}: {result.mismatch.problem}; {counts}{bodies}")
    elif result.bodies:
        first, others = result.bodies[0], len(result.bodies) - 1
        more = f" (and {others} more)" if others else ""
        words = f" at position {first.position}: {first.problem}{more}; the log itself is exact: {counts}"
        verdict = Text.assemble(("damaged", "red"), words)
    elif result.erased:
        verdict = Text.assemble(
            ("erased", "green"), f": {counts} replay as the erasure left them, without words and bodies"
        )
    else:
        words = f": {counts} replay as recorded; the session is {result.state.phase.value}"
        verdict = Text.assemble(("exact", "green"), words)
    console.print(verdict, soft_wrap=not console.is_terminal)
    if result.effects_only:
        console.print(_weaker(result), soft_wrap=not console.is_terminal)


def _weaker(result: Replay) -> str:
    """What an older version's digests do not say."""
    which = "all" if result.effects_only == result.batches else str(result.effects_only)
    return (
        f"{which} of the {result.batches} batches are by an older rule: their effects and wire events were checked, and not "
        "what of their records shows in neither"
    )
