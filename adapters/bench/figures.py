"""Medians and percentiles, and the table that shows them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

REPORT_COLUMNS = 160
"""Width of a report that goes to a file: no figure of any table is shortened for want of room."""


def report_console() -> Console:
    """A console for tables of figures: a terminal's own width, and room enough where nobody's terminal sets one."""
    console = Console()
    return console if console.is_terminal else Console(width=REPORT_COLUMNS)


def figures_table(*heads: str, title: str | None = None) -> Table:
    """A table whose first column is words and whose others are figures, which a narrow terminal folds and never cuts."""
    table = Table(*heads, title=title, title_justify="left", box=None)
    for column in table.columns[1:]:
        column.justify, column.overflow = "right", "fold"
    return table


def percentile(values: Sequence[float], percent: float) -> float:
    """By linear interpolation between the closest ranks; NaN for no values."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    rank = (len(ordered) - 1) * percent / 100
    low = int(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def row(name: str, values: Sequence[float], digits: int = 0) -> tuple[str, ...]:
    """name, n, median, p90, p99, min, max."""
    if not values:
        return (name, "0", "-", "-", "-", "-", "-")
    figures = (
        statistics.median(values),
        percentile(values, 90),
        percentile(values, 99),
        min(values),
        max(values),
    )
    return (name, str(len(values)), *(f"{figure:.{digits}f}" for figure in figures))


def print_table(console: Console, title: str, rows: Sequence[tuple[str, ...]]) -> None:
    """Rows as ``row`` makes them."""
    table = figures_table("", "n", "median", "p90", "p99", "min", "max", title=title)
    for cells in rows:
        table.add_row(*cells)
    console.print(table)
