"""`duologue bench`: the figures that the README states, measured on this machine."""

from __future__ import annotations

import random
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress

from adapters.bench.barge_in import barge_in as measure_barge_in
from adapters.bench.environment import descendants, describe, rss_mib
from adapters.bench.figures import print_table, report_console, row
from adapters.bench.own_server import own_server
from adapters.bench.speech import SpokenTurn, break_down, settle, speak
from adapters.command_line.bench_store import store_command
from adapters.command_line.bench_wire import floor_rows, wire
from adapters.command_line.config_file import split_option
from adapters.command_line.reading import run
from store.opening import open_store

STAGES = (
    "endpoint",
    "transcript",
    "speech_stopped in the log",
    "first_token",
    "clause",
    "audio",
    "first output in the log",
    "sent, and at the client",
)


@click.group(invoke_without_command=True)
@click.pass_context
def bench(context: click.Context) -> None:
    """Measure this machine: spoken turns, barge-in, memory. Starts servers of its own; nothing else should run meanwhile.

    \b
    duologue bench            speech and barge-in, about five minutes
    duologue bench speech     spoken turns in real time (the cascade)
    duologue bench barge-in   barge-in by command (the scripted model)
    duologue bench wire       barge-in among many sessions, and sessions for each core
    duologue bench store      append latency, resume of a long session, takeover
    """
    if context.invoked_subcommand is None:
        context.invoke(speech)
        context.invoke(barge_in)


@bench.command(short_help="Spoken turns in real time, with each stage of the way.")
@click.option("--turns", default=30, show_default=True, help="How many questions are asked.")
@click.option("--seed", default=1, show_default=True, help="Order of the questions.")
@click.option(
    "--questions",
    default="tests/data/questions",
    show_default=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of WAV files.",
)
@click.option("--model-option", "options", multiple=True, help="KEY=VALUE for the server's model.")
def speech(
    turns: int = 30, seed: int = 1, questions: Path = Path("tests/data/questions"), options: tuple[str, ...] = ()
) -> None:
    """Spoken turns in real time: end of speech to first audio at the client, over the socket."""
    files = sorted(questions.glob("*.wav"))
    if not files:
        raise click.UsageError(f"no WAV files in {questions}")
    order = random.Random(seed)
    asked = [path for _ in range(-(-turns // len(files))) for path in order.sample(files, len(files))][:turns]
    run(_speech, asked, seed, dict(split_option(option) for option in options))


bench.add_command(wire)
bench.add_command(store_command)


@bench.command("barge-in", short_help="Barge-in by command: from the send to the end.")
@click.option("--rounds", default=300, show_default=True, help="How many answers are cut.")
def barge_in(rounds: int = 300) -> None:
    """Barge-in by command: from the send to the cancelled response.done, both at the client."""
    run(_barge_in, rounds)


async def _speech(files: list[Path], seed: int, options: dict[str, str]) -> None:
    console = report_console()
    console.print(describe(seed))
    async with own_server("cascade", options) as server:
        await settle(2)
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("spoken turns", total=len(files))

            def on_turn(turn: SpokenTurn | None, problem: str) -> None:
                progress.advance(task)
                if turn is None:
                    console.print(f"[red]no answer[/] to {problem}")

            turns = await speak(server.url, files, on_turn)
        memory_mib = sum(rss_mib(pid) for pid in descendants(server.pid))
        async with open_store(server.store_url) as store:
            turns = [await break_down(store, turn) for turn in turns]
    _print_speech(console, turns, len(files), memory_mib)


def _print_speech(console: Console, turns: list[SpokenTurn], asked: int, memory_mib: float) -> None:
    rows = [row("end of speech -> first audio at the client", [turn.first_audio_ms for turn in turns])]
    for name in STAGES:
        values = [turn.stages[name] for turn in turns if name in turn.stages]
        if values:
            rows.append(row(f"  last loud frame -> {name}", values))
    rows.append(row("length of the answer", [turn.answer_ms for turn in turns]))
    print_table(console, "spoken turns in real time, ms", rows)
    console.print(f"{len(turns)} of {asked} questions answered; underruns {sum(turn.underruns for turn in turns)}")
    console.print(f"memory of the server and its worker, one session: {memory_mib:.0f} MiB")


async def _barge_in(rounds: int) -> None:
    console = report_console()
    console.print(describe(0))
    floor = await floor_rows(rounds)
    async with own_server("scripted", {"rtf": "0.5", "unit_ms": "100"}) as server:
        await settle(1)
        result = await measure_barge_in(server.url, rounds)
    rows = [*floor, row("one session", result.latencies_ms, 2)]
    print_table(console, "barge-in command -> cancelled, ms", rows)
    console.print(f"audio after the cancelled end: {result.stale_deltas} deltas")
