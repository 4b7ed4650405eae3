"""How a talk is shown: a live meter on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from adapters.command_line.talk_session import Narrator

BAR_CELLS = 24


class PlainLines:
    """One line for each thing that happens."""

    def line(self, text: str) -> None:
        """Print it."""
        click.echo(text)

    def levels(self, user: float, assistant: float, state: str) -> None:
        """Nothing: a meter in a file helps nobody."""


class Meter:
    """Two bars that move, with the lines scrolling above them."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def line(self, text: str) -> None:
        """Print it above the meter."""
        self._live.console.print(Text(text))

    def levels(self, user: float, assistant: float, state: str) -> None:
        """Redraw."""
        self._live.update(render_meter(user, assistant, state))


def render_meter(user: float, assistant: float, state: str) -> Text:
    """The meter's one line."""
    text = Text("you ", style="bold")
    text.append(_bar(user), style="green")
    text.append("  assistant ", style="bold")
    text.append(_bar(assistant), style="magenta")
    text.append(f"  {state}", style="dim")
    return text


def _bar(level: float) -> str:
    full = round(max(0.0, min(1.0, level)) * BAR_CELLS)
    return "█" * full + "░" * (BAR_CELLS - full)


@contextmanager
def narrator(quiet: bool = False) -> Iterator[Narrator]:
    """The right way to show a talk on this standard output."""
    if quiet or not sys.stdout.isatty():
        yield PlainLines()
        return
    with Live(render_meter(0, 0, "connecting"), console=Console(), refresh_per_second=20, transient=True) as live:
        yield Meter(live)
