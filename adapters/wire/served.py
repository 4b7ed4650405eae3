"""What a server has to choose from: its model, under which names, and the model's voices.

Clients of other servers name those servers' models and voices, and some cannot help it: OpenAI's agents put a model of
their own into each ``session.update``, voice pipelines a voice. Such names stand for this server's model, and for its own
voice; any other name is a mistake that its user must hear of, with what there is.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

import attrs

from adapters.wire.problems import Problem

OPENAI_MODELS = ("gpt-realtime*", "gpt-*-realtime*")
"""Names that lead to this server's model without anybody's doing."""

OPENAI_VOICES = frozenset(
    {
        "alloy",
        "ash",
        "ballad",
        "cedar",
        "coral",
        "echo",
        "fable",
        "marin",
        "nova",
        "onyx",
        "sage",
        "shimmer",
        "verse",
    }
)
"""Names that stand for the model's own voice."""

VOICE_SUFFIXES = (".pt", ".wav")
"""Of the files in which PersonaPlex keeps its voices: their names come with and without."""

SHOWN_CHARS_MAX = 64


@attrs.frozen
class Served:
    """``aliases`` are patterns as a shell has them. ``voices``: the model's, None while nobody knows them."""

    model: str
    aliases: tuple[str, ...] = OPENAI_MODELS
    voices: tuple[str, ...] | None = None

    def check_model(self, name: str, param: str) -> None:
        """Raises Problem for a name of no model here."""
        if name == self.model or any(fnmatchcase(name, alias) for alias in self.aliases):
            return
        names = ", ".join((self.model, *self.aliases))
        raise Problem(
            "model_not_found",
            f"There is no model {name[:SHOWN_CHARS_MAX]!r} here; there is: {names}. Name one of these or none; whoever runs"
            " the server lets other names lead to its model with --model-alias.",
            param,
        )

    def voice(self, name: str, param: str) -> str:
        """The model's own name of a voice, "" for its first one. Raises Problem."""
        if self.voices is None or not name:
            return name
        found = voice_named(name, self.voices)
        if found is not None:
            return found
        if name.lower() in OPENAI_VOICES:
            return ""
        raise unknown_voice(name, self.voices, param)


def voice_named(wanted: str, voices: tuple[str, ...]) -> str | None:
    """The voice that a client means: in any case, with or without the suffix of a file. Never a path."""
    names = {name.lower(): name for name in voices}
    bare = next((wanted.removesuffix(suffix) for suffix in VOICE_SUFFIXES if wanted.endswith(suffix)), wanted)
    return names.get(wanted.lower()) or names.get(bare.lower())


def unknown_voice(name: str, voices: tuple[str, ...], param: str) -> Problem:
    """What to tell the client."""
    known = ", ".join(voices) or "none"
    text = f"There is no voice {name[:SHOWN_CHARS_MAX]!r}; '{param}' is one of the model's: {known}."
    return Problem("invalid_voice", text, param)
