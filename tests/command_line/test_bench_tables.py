"""A report's tables keep every figure, in a file and on a narrow terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from adapters.bench.figures import figures_table, report_console
from adapters.command_line.bench_wire import HEADS

FIGURES = tuple(f"{1_234.5 + number:.1f}" for number in range(len(HEADS)))


def test_a_report_in_a_file_has_room_for_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    table = figures_table(*HEADS)
    table.add_row(*FIGURES)
    report_console().print(table)
    heads, figures = capsys.readouterr().out.splitlines()
    assert tuple(heads.split()) == HEADS
    assert tuple(figures.split()) == FIGURES


def test_a_narrow_terminal_folds_figures_and_cuts_none() -> None:
    paper = io.StringIO()
    table = figures_table(*HEADS[:6])
    table.add_row("n", *FIGURES[1:6])
    Console(file=paper, width=30).print(table)
    lines = [line.split() for line in paper.getvalue().splitlines()]
    assert "…" not in paper.getvalue()
    assert sorted("".join(cell for line in lines for cell in line)) == sorted("".join((*HEADS[:6], "n", *FIGURES[1:6])))
