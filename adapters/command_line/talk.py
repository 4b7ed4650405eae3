"""`duologue talk`: speak to a server from a WAV file, a text or a microphone, and hear it answer."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path

import click
import trio
from click.core import ParameterSource

from adapters.client.errors import ClientError, ConnectionLost, HandshakeRefused
from adapters.client.session_config import cascade_session_config
from adapters.client.trio_client import DuplexClient
from adapters.command_line.audio_files import BadAudioFile, open_wav
from adapters.command_line.sound_card import NoSoundCard, open_sound_card
from adapters.command_line.talk_folder import EVENTS, FolderTaken, prepare
from adapters.command_line.talk_meter import narrator
from adapters.command_line.talk_record import TalkRecord
from adapters.command_line.talk_session import RATE, NoAnswer, SoundCard, Talk, TalkPlan

FAST_SPEED = 8.0
LOADING_S_MAX = 120.0
LOADING_WAIT_S = 2.0
WAV = click.Path(exists=True, dir_okay=False, path_type=Path)
SECONDS = click.FloatRange(0)


class NoConnection(click.ClickException):
    """No session came about."""

    exit_code = 1


class NotAnswered(click.ClickException):
    """The session stood, and no answer came in time."""

    exit_code = 3


class BrokenOff(click.ClickException):
    """The session ended in the middle of the talk."""

    exit_code = 4


@click.command()
@click.argument("question", type=WAV, required=False)
@click.option("--say", "text", metavar="TEXT", help="Type this instead of speaking.")
@click.option("--mic", is_flag=True, help="Talk with the microphone and loudspeaker, until Ctrl-C. Wear headphones.")
@click.option("--interrupt", type=WAV, help="A second WAV, spoken over the first answer.")
@click.option(
    "--after", "after_s", default=1.5, show_default=True, type=SECONDS, help="Seconds of the answer heard before that."
)
@click.option(
    "--url", default="ws://localhost:8765/v1/realtime", show_default=True, metavar="URL", help="The server's address."
)
@click.option("--model", default=None, metavar="NAME", help="The server's model, by one of its names; not needed.")
@click.option("--instructions", default="", metavar="TEXT", help="What the assistant is told about itself.")
@click.option(
    "--api-key", envvar="DUOLOGUE_API_KEY", metavar="KEY", help="Where the server asks for one [env: DUOLOGUE_API_KEY]."
)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER", help="Save what was heard there."
)
@click.option("--fast", is_flag=True, help=f"Run the talk's clock {FAST_SPEED:g} times as fast.")
@click.option("--chunk-ms", default=200, show_default=True, type=click.IntRange(10, 2_000), help="Audio in one append.")
@click.option(
    "--timeout", "timeout_s", default=30.0, show_default=True, type=SECONDS, help="Seconds to wait for an answer."
)
@click.option("--quiet", is_flag=True, help="Plain lines, no meter, also on a terminal.")
def talk(
    question: Path | None,
    text: str | None,
    mic: bool,
    interrupt: Path | None,
    after_s: float,
    url: str,
    model: str | None,
    instructions: str,
    api_key: str | None,
    out: Path | None,
    fast: bool,
    chunk_ms: int,
    timeout_s: float,
    quiet: bool,
) -> None:
    """Speak to a server and hear it answer.

    Streams QUESTION (a WAV file) as a live microphone would, then silence until the answer has been heard.
    With --out it saves answer_N.wav and conversation.wav as they were heard (you left, the assistant right),
    summary.json and events.jsonl; what a former talk left in that folder goes.

    \b
    Examples:
      duologue talk question.wav
      duologue talk story.wav --interrupt stop.wav --after 1.5 --out talk/
      duologue talk --say "What is the capital of France?"
      duologue talk --mic

    Exit codes: 0 all was heard, 1 no connection, 2 wrong usage, 3 no answer in time, 4 the session broke off, or Ctrl-C.
    """
    if sum((question is not None, text is not None, mic)) != 1:
        raise click.UsageError("say what to talk about: a WAV file, or --say TEXT, or --mic (one of them)")
    if text is not None and not text.strip():
        raise click.UsageError("--say is empty: say what to ask")
    if interrupt is None and click.get_current_context().get_parameter_source("after_s") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--after says when --interrupt speaks: name its WAV file as well")
    try:
        plan = TalkPlan(
            question=None if question is None else (question.name, open_wav(question, RATE)),
            text=text,
            interrupt=None if interrupt is None else (interrupt.name, open_wav(interrupt, RATE)),
            after_s=after_s,
            chunk_ms=chunk_ms,
            speed=FAST_SPEED if fast and not mic else 1.0,
            timeout_s=timeout_s,
        )
        config = cascade_session_config(instructions=instructions)
        make_client = partial(DuplexClient, url, model=model, config=config, api_key=api_key)
        make_client()
    except BadAudioFile as error:
        raise click.UsageError(str(error)) from None
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--url") from None
    former = [] if out is None else _prepared(out)
    trio.run(_talk, make_client, plan, url, out, former, mic, quiet, api_key is not None)


def _prepared(out: Path) -> list[Path]:
    """What a former talk left in ``out``. Raises click.BadParameter."""
    try:
        return prepare(out)
    except OSError as error:
        raise click.BadParameter(f"{out} cannot be made: {error.strerror}", param_hint="--out") from None
    except FolderTaken as error:
        raise click.BadParameter(str(error), param_hint="--out") from None


async def _until_interrupt(stopped: trio.Event) -> None:
    """Return at Ctrl-C, and say so."""
    with trio.open_signal_receiver(signal.SIGINT) as signals:
        async for _ in signals:
            stopped.set()
            return


async def _enter(make_client: Callable[[], DuplexClient], stack: AsyncExitStack) -> DuplexClient:
    """A client in its session; waits for a server that is still loading its model. Raises ClientError."""
    until, told = trio.current_time() + LOADING_S_MAX, False
    while True:
        try:
            return await stack.enter_async_context(make_client())
        except HandshakeRefused as refused:
            if refused.code != "loading" or trio.current_time() >= until:
                raise
            if not told:
                click.echo("-- the server is loading its model ...", err=True)
            told = True
            await trio.sleep(LOADING_WAIT_S)


async def _talk(
    make_client: Callable[[], DuplexClient],
    plan: TalkPlan,
    url: str,
    out: Path | None,
    former: list[Path],
    mic: bool,
    quiet: bool,
    api_key_given: bool,
) -> None:
    async with AsyncExitStack() as stack:
        try:
            sound: SoundCard | None = stack.enter_context(open_sound_card(RATE)) if mic else None
            client = await _enter(make_client, stack)
        except NoSoundCard as error:
            raise NoConnection(str(error)) from None
        except ClientError as error:
            raise _no_connection(error, url, api_key_given) from None
        for path in former:
            path.unlink(missing_ok=True)
        with ExitStack() as show:
            shown = show.enter_context(narrator(quiet))
            run = Talk(client, plan, shown, prebuffer_ms=recommended_prebuffer_ms(client), sound_card=sound)
            if out is not None:
                run.record.keep(out)
                run.record.events = show.enter_context((out / EVENTS).open("w", encoding="utf-8"))
            try:
                stopped = trio.Event()
                await run.run(partial(_until_interrupt, stopped))
                if stopped.is_set() and not mic:
                    raise BrokenOff("stopped by Ctrl-C before all was said and heard")
            except NoAnswer as error:
                raise NotAnswered(f"{error}; {_why_silent(run)}") from None
            except ClientError as error:
                raise BrokenOff(f"the session broke off: {error}") from None
            except (BadAudioFile, OSError) as error:
                raise BrokenOff(f"a file of the talk cannot be read or written any more: {error}") from None
            finally:
                _leave(run.record, out, plan, client.session_id)


def _leave(record: TalkRecord, out: Path | None, plan: TalkPlan, session_id: str | None) -> None:
    """Write and say what came of it, and where to look further."""
    if out is not None:
        record.save(out)
        click.echo(f"saved to {out}/")
    summary = record.summary()
    for answer in summary["answers"]:
        latency = "" if answer["latency_ms"] is None else f" first audio after {answer['latency_ms']} ms,"
        # A cut is told below; why an answer ended in the middle otherwise is told nowhere else.
        why = f" ({answer['reason']})" if answer["status"] in ("incomplete", "failed") and answer["reason"] else ""
        heard, received = answer["played_ms"] / 1_000, answer["received_ms"] / 1_000
        click.echo(
            f"{answer['file']}: {answer['status'] or 'not finished'}{why},{latency} "
            f"heard {heard:.1f} s of {received:.1f} s, underruns: {answer['underruns']}"
        )
    if summary["barge_in"] is not None:
        click.echo(f"barge-in: silent {summary['barge_in']['speech_to_silence_ms']} ms after the speech began")
    elif plan.interrupt is not None and summary["answers"]:
        click.echo("barge-in: none; the answer was over before the interruption was heard, or went on in spite of it")
    if session_id is not None:
        click.echo(f"session {session_id}")


def recommended_prebuffer_ms(client: DuplexClient) -> int:
    """What the session object recommends, 0 where it does not say."""
    session = client.session_info
    value = session.get("recommended_prebuffer_ms")
    if value is None and isinstance(session.get("capabilities"), dict):
        value = session["capabilities"].get("recommended_prebuffer_ms")
    return int(value) if isinstance(value, int | float) and value > 0 else 0


def _why_silent(run: Talk) -> str:
    """Where to look when no answer came: at what was said, before at the server."""
    said = run.microphone.utterances
    if any(utterance.speech_start_ms is None for utterance in said):
        names = ", ".join(utterance.name for utterance in said if utterance.speech_start_ms is None)
        return f"nothing can be heard in {names}: is it the right file?"
    return "the server is up, so look at its log"


def _no_connection(error: ClientError, url: str, api_key_given: bool) -> click.ClickException:
    if isinstance(error, ConnectionLost) and error.answered:
        return NoConnection(f"no session at {url}: {error.reason}. Is it a duologue server? Its address goes to --url")
    if isinstance(error, ConnectionLost):
        advice = "Is the server running? Start it with: make serve. If it is elsewhere, name its address with --url"
        return NoConnection(f"cannot reach {url}: {error.reason}. {advice}")
    if isinstance(error, HandshakeRefused):
        hint = ""
        if error.status == 401 and api_key_given:
            hint = " The key that was given (--api-key or DUOLOGUE_API_KEY) is not one of the server's."
        elif error.status == 401:
            hint = " Give a key with --api-key or in DUOLOGUE_API_KEY."
        elif error.status == 403:
            hint = " Name the server as localhost, or allow the site there: duologue serve --origin."
        elif error.code == "resource_exhausted":
            hint = " Wait for a session to end, or give the server more sessions."
        elif error.code == "model_not_found":
            hint = " Name one of these with --model, or leave it out."
        elif error.code == "not_found":
            hint = " It is usually /v1/realtime."
        elif error.code.startswith("http_"):  # no words of ours came with it
            hint = " Is it a duologue server, and is the path right? It is usually /v1/realtime."
        return NoConnection(f"the server refused the session ({error.code}): {error.message.rstrip('.')}.{hint}")
    return NoConnection(f"cannot open a session at {url}: {error}")
