"""`duologue replay`: fold a session's log again and see whether it is what really happened."""

from __future__ import annotations

import json

import attrs
import click
from rich.console import Console
from rich.text import Text

from adapters.command_line.reading import find_session, reading, run, store_option
from adapters.replay.conversation import Line, conversation
from adapters.replay.replaying import Replay, SessionUnreadable, replay_session
from adapters.wire.caused import encode_caused
from adapters.wire.projections import make_projection
from core.ports.store import SessionUnknown


@click.command()
@click.argument("session")
@store_option
@click.option("--json", "as_json", is_flag=True, help="The conversation as JSON, for other programs.")
def replay(session: str, store_url: str, as_json: bool) -> None:
    """Replay a recorded session: fold its log, check that state, effects and wire stream are those recorded, and print
    the conversation. What was made and not heard is struck out, or in brackets where there is no terminal. The beginning
    of an id is enough.

    Exit code 0: the replay is exact. 1: it differs, and the position is named.

    \b
    Example: duologue sessions list; duologue replay duplex-4f...
    """
    try:
        result = run(_replay, store_url, session)
    except SessionUnknown:
        raise click.ClickException(f"no session {session}. List them: duologue sessions list") from None
    except SessionUnreadable as fault:
        raise click.ClickException(f"session {session}: {fault}") from fault
    lines = conversation(result)
    if as_json:
        click.echo(json.dumps({**_summary(result), "turns": [attrs.asdict(line) for line in lines]}, indent=2))
    else:
        _print(result, lines)
    if not result.exact:
        raise SystemExit(1)


async def _replay(url: str, session: str) -> Replay:
    async with reading(url) as store:
        return await replay_session(store, await find_session(store, session), make_projection, encode_caused)


def _summary(result: Replay) -> dict[str, object]:
    return {
        "session": result.state.session_id,
        "exact": result.exact,
        "mismatch": None if result.mismatch is None else attrs.asdict(result.mismatch),
        "events": len(result.records),
        "batches": result.batches,
        "wire_events": len(result.frames),
        "phase": result.state.phase.value,
        "epoch": result.state.epoch,
    }


def _print(result: Replay, lines: list[Line]) -> None:
    console = Console()
    piped = not console.is_terminal  # one line a turn then: who reads it further counts lines, not columns
    for line in lines:
        text = Text(f"{line.at_ms / 1000:8.2f} s  ", style="dim")
        text.append(f"{line.speaker:>9}  ", style="bold cyan" if line.speaker == "user" else "bold green")
        text.append(line.text.strip())
        if line.cut.strip():
            cut = f" [not heard: {line.cut.strip()}]" if piped else " " + line.cut.strip()
            text.append(cut, style="strike dim")
        if line.notes:
            text.append(f"  ({', '.join(line.notes)})", style="dim italic")
        console.print(text, soft_wrap=piped)
    counts = f"{len(result.records)} events, {result.batches} batches, {len(result.frames)} wire events"
    if result.mismatch is None:
        console.print(
            f"[green]exact[/]: {counts} replay as recorded; the session is {result.state.phase.value}", soft_wrap=piped
        )
    else:
        where = f"position {result.mismatch.position} (batch {result.mismatch.batch_id})"
        console.print(f"[red]differs[/] at {where}: {result.mismatch.problem}; {counts}", soft_wrap=piped)
