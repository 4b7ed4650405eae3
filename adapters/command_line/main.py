"""The command ``duologue``. Sub-commands are imported when they are asked for, so that ``--help`` is quick."""

from __future__ import annotations

import importlib
from difflib import get_close_matches

import click

COMMANDS = {
    "serve": ("adapters.command_line.serve", "Serve the page and the realtime API."),
    "talk": ("adapters.command_line.talk", "Talk to a server from WAV files or a microphone."),
    "sessions": ("adapters.command_line.sessions", "List sessions; show one's events, keep it as a file, erase it."),
    "replay": ("adapters.command_line.replay", "Fold a session's log again and check that it comes out the same."),
    "bench": ("adapters.command_line.bench", "Measure latency, barge-in and memory on this machine."),
}
"""Name -> (the module that has a click command of that name, what ``--help`` says of it)."""


class LazyGroup(click.Group):
    """A group whose commands live in modules of their own."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands, in the table's order."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module and return the command; None when there is no such command."""
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that ``args`` begin with. Raises click.UsageError for one that is none, with what was meant."""
        close = get_close_matches(args[0], COMMANDS)
        if args[0] not in COMMANDS and not args[0].startswith("-") and close:
            ctx.fail(f"no such command {args[0]!r}; did you mean {' or '.join(close)}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table, without importing what is in it."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="duologue", message="%(prog)s %(version)s")
def main() -> None:
    """Talk to a machine that listens while it speaks.

    \b
    duologue serve                    start the server, then open http://localhost:8765/
    duologue talk question.wav        ask a question from a file and hear the answer
    duologue sessions list            the newest conversations, and their ids
    duologue replay SESSION           what was said, and what was cut off
    """


if __name__ == "__main__":
    main()
