"""``duologue serve``: the server, from its flags to its last connection."""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import click
import trio
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from adapters.command_line.config_file import (
    CONFIG_PATH,
    check_values,
    model_options,
    read_config,
    said_where,
    session_defaults,
)
from adapters.command_line.reading import DEFAULT_STORE, Damaged, without_password
from adapters.command_line.server_log import set_up_log, wordless_crashes
from adapters.command_line.workers import OpenRuntime, runtime_of, worker_flags
from adapters.server.admission import Limits
from adapters.server.listening import allow_descriptors
from adapters.server.memory import keep_little
from adapters.server.serving import (
    ENDING,
    CannotListen,
    RunningServer,
    end_at_signal,
    open_server,
    serve_until_signal,
    settle,
)
from adapters.server.settings import ServerSettings, is_loopback
from adapters.wire.served import OPENAI_MODELS, Served
from core.ports.runtime import Runtime
from core.ports.store import Store, StoreDamaged, StoreError
from gpu_runtime.discovery import model_names, no_model
from gpu_runtime.plugin import ModelUnavailable
from store.opening import check_store, open_store
from store.sql.urls import StoreUrlInvalid

OpenStore = Callable[[], AbstractAsyncContextManager[Store]]

SESSION = "duologue.session"
"""Key of click's ``meta`` for the file's [session] table."""

LOG_LEVELS = ["debug", "info", "warning", "error"]
log = logging.getLogger("duologue.serve")


def _load_config(ctx: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    if path is not None:
        values = read_config(path)
        ctx.meta[SESSION] = values.pop("session")
        ctx.meta[CONFIG_PATH] = path
        check_values(path, values, ctx)
        ctx.default_map = values
    return path


@click.command()
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=_load_config,
    metavar="FILE.toml",
    help="Read settings from a file; flags win over it. Sections: [server], [store], [model], [workers], [session].",
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for the whole network."
)
@click.option("--port", default=8765, show_default=True, type=click.IntRange(0, 65_535), help="Port to listen on.")
@click.option(
    "--store",
    default=DEFAULT_STORE,
    envvar="DUOLOGUE_STORE",
    show_envvar=True,
    show_default=True,
    metavar="URL",
    help="Where sessions are kept: sqlite:///FILE, postgresql://USER@HOST/NAME, or memory: for nowhere.",
)
@click.option(
    "--durability",
    default="full",
    show_default=True,
    type=click.Choice(["full", "normal"]),
    help="What an acknowledged event survives: full, a power cut; normal, a killed server.",
)
@click.option(
    "--store-patience-s",
    default=30.0,
    show_default=True,
    type=click.FloatRange(0),
    help="How long conversations pause for a PostgreSQL that is away before they end; 0: they end at once.",
)
@click.option("--model", default="cascade", show_default=True, help="The model plugin: cascade, scripted, or your own.")
@click.option(
    "--model-option",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the model, e.g. first_piece_words=4. Repeat it for more.",
)
@click.option(
    "--model-alias",
    multiple=True,
    metavar="PATTERN",
    help="Another name under which clients may ask for the model, e.g. 'openbmb/MiniCPM-o-*'. Repeat it for more; "
    "OpenAI's names (gpt-realtime...) lead to it anyway.",
)
@worker_flags
@click.option(
    "--max-sessions",
    type=click.IntRange(1),
    help="Conversations at a time, at most.  [as many as the workers have room for]",
)
@click.option(
    "--queue-max",
    default=0,
    show_default=True,
    type=click.IntRange(0, 10_000),
    help="Clients that may wait for a session when all are taken; 0: they are sent away.",
)
@click.option("--sessions-per-key", type=click.IntRange(1), help="Conversations of one API key at a time.  [no limit]")
@click.option(
    "--opens-per-key", type=click.IntRange(1), help="Conversations that one key may begin a minute.  [no limit]"
)
@click.option("--events-per-key", type=click.IntRange(1), help="Messages that one key may send a second.  [no limit]")
@click.option(
    "--drain-s",
    default=30.0,
    show_default=True,
    type=click.FloatRange(0),
    help="After SIGTERM or Ctrl-C, seconds in which answers may finish.",
)
@click.option(
    "--silent-s",
    default=120.0,
    show_default=True,
    type=click.FloatRange(1),
    help="Seconds without a word of an answer that is being made, after which it fails as model_silent.",
)
@click.option(
    "--api-key",
    multiple=True,
    envvar="DUOLOGUE_API_KEYS",
    show_envvar=True,
    help="Ask for this key on /v1/. Repeat it for more; the variable has them with blanks between.",
)
@click.option(
    "--no-keys", is_flag=True, help="Let in everybody who reaches this server, though it listens beyond this machine."
)
@click.option(
    "--origin", multiple=True, metavar="URL", help="Another site whose pages may connect. Repeat it for more."
)
@click.option("--tls-cert", type=click.Path(exists=True, dir_okay=False), help="Certificate chain (PEM): serve HTTPS.")
@click.option("--tls-key", type=click.Path(exists=True, dir_okay=False), help="The certificate's key (PEM).")
@click.option("--log-level", default="info", show_default=True, type=click.Choice(LOG_LEVELS), help="How much to log.")
@click.pass_context
def serve(ctx: click.Context, /, log_level: str, **flags: Any) -> None:
    """Serve the page and the realtime API.

    \b
    Examples:
      duologue serve                              talk at http://localhost:8765/
      duologue serve --model scripted             without weights, to try things out
      duologue serve --store memory: --port 9000  keep nothing
      duologue serve --workers 2                  two processes share the conversations
      duologue serve --ray auto --workers auto --worker-gpus 1
                                                  a worker for each GPU of this Ray cluster
      duologue serve --host 0.0.0.0 --api-key "$KEY" --tls-cert cert.pem --tls-key key.pem

    \b
    A file for --config:
      [server]
      port = 9000
      [model]
      name = "cascade"
      options = { llm_threads = 2 }
      [workers]
      count = 2
      [session]                 # what every conversation begins with, as in session.update
      instructions = "You are a friendly museum guide."

    The first Ctrl-C lets answers finish (see --drain-s), the second ends it at once. Exit codes: 0 it was told to end,
    1 it cannot serve (port, store or model), 2 wrong usage (a flag or the file), 3 the store is damaged.
    """
    set_up_log(log_level)
    settings = _settings(ctx, flags)
    allow_descriptors(settings.connections_max)
    keep_little()
    with _LoadingBar(Console(stderr=True), settings.model) as bar:
        _run(ctx, settings, flags, runtime_of(flags, model_options(flags["model_option"]), bar.show), bar)


def _run(
    ctx: click.Context, settings: ServerSettings, flags: Mapping[str, Any], runtime: OpenRuntime, bar: _LoadingBar
) -> None:
    make_store = partial(
        open_store, flags["store"], durability=flags["durability"], patience_s=flags["store_patience_s"]
    )
    try:
        with wordless_crashes():
            check = partial(_check_voice, settings, _session_where(ctx))
            opening = Opening(partial(check_store, flags["store"]), make_store, partial(_checked, runtime, check))
            trio.run(_serve, settings, opening, bar, strict_exception_groups=True)
    except* CannotListen as group:
        raise click.ClickException(_first(group)) from None
    except* ModelUnavailable as group:
        from_file = flags["model_option"] and said_where(ctx, "model_option")
        raise click.ClickException(_first(group) + (f" (see {from_file})" if from_file else "")) from None
    except* StoreUrlInvalid as group:
        raise click.UsageError(
            f"{said_where(ctx, 'store')} {without_password(flags['store'])}: {_first(group)}"
        ) from None
    except* StoreError as group:
        kind = click.ClickException if group.subgroup(StoreDamaged) is None else Damaged
        raise kind(f"the store at {without_password(flags['store'])}: {_first(group)}") from None
    except* click.UsageError as group:
        raise click.UsageError(_first(group)) from None
    except* KeyboardInterrupt:
        raise click.Abort from None


def _session_where(ctx: click.Context) -> str:
    return f"{ctx.meta[CONFIG_PATH]}: [session]" if CONFIG_PATH in ctx.meta else "[session]"


def _settings(ctx: click.Context, flags: Mapping[str, Any]) -> ServerSettings:
    if not all(key.strip() for key in flags["api_key"]):
        raise click.UsageError(f"{said_where(ctx, 'api_key')}: an API key is empty: such a key would let everybody in")
    aliases = (*OPENAI_MODELS, *flags["model_alias"])
    if not (flags["api_key"] or flags["no_keys"] or is_loopback(flags["host"])):
        raise click.UsageError(
            f"{said_where(ctx, 'host')} {flags['host']} is open to other machines: set a key with --api-key (or"
            " DUOLOGUE_API_KEYS), or let everybody in with --no-keys"
        )
    if flags["ray"] is None and flags["model"] not in model_names():  # a cluster's workers have their own plugins
        raise click.UsageError(f"{said_where(ctx, 'model')}: {no_model(flags['model'])}")
    return ServerSettings(
        host=flags["host"],
        port=flags["port"],
        model=flags["model"],
        model_aliases=aliases,
        sessions_max=flags["max_sessions"],
        limits=Limits(flags["queue_max"], flags["sessions_per_key"], flags["opens_per_key"], flags["events_per_key"]),
        drain_s=flags["drain_s"],
        silent_s=flags["silent_s"],
        api_keys=tuple(flags["api_key"]),
        origins=tuple(flags["origin"]),
        tls=_tls(ctx, flags["tls_cert"], flags["tls_key"]),
        defaults=session_defaults(ctx.meta.get(SESSION, {}), Served(flags["model"], aliases), _session_where(ctx)),
    )


def _tls(ctx: click.Context, cert: str | None, key: str | None) -> ssl.SSLContext | None:
    if cert is None:
        if key is not None:
            raise click.UsageError(f"{said_where(ctx, 'tls_key')} needs --tls-cert (in a file: tls_cert)")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise click.UsageError(
            f"{said_where(ctx, 'tls_cert')}: the certificate cannot be used: {cert} and its key must be PEM files"
            f" ({error})"
        ) from None
    return context


def _first(group: BaseException) -> str:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group.format_message() if isinstance(group, click.ClickException) else str(group)


@attrs.frozen
class Opening:
    """What a server opens. Nothing is made in a store before all else has turned out well."""

    check_store: Callable[[], None]
    """Blocks; raises what opening the store would raise, as far as that is known without making anything."""
    store: OpenStore
    runtime: OpenRuntime


@asynccontextmanager
async def _checked(runtime: OpenRuntime, check: Callable[[tuple[str, ...]], None]) -> AsyncIterator[Runtime]:
    """The runtime, once ``check`` has found nothing against its model's voices."""
    async with runtime() as opened:
        check(opened.capabilities.voices if opened.capabilities is not None else ())
        yield opened


async def _serve(settings: ServerSettings, opening: Opening, bar: _LoadingBar) -> None:
    console = bar.console
    with trio.open_signal_receiver(*ENDING) as signals:
        async with trio.open_nursery() as nursery:
            loading, watched = trio.CancelScope(), trio.Event()

            async def watch() -> None:
                with loading:
                    await end_at_signal(signals, nursery.cancel_scope)
                watched.set()

            nursery.start_soon(watch)
            await trio.to_thread.run_sync(opening.check_store, abandon_on_cancel=True)
            async with open_server(settings, opening.store, opening.runtime) as server:
                loading.cancel()
                await watched.wait()  # one at a time may listen for signals
                bar.stop()
                settle()
                _announce(console, settings, server)
                text = "Finishing answers; Ctrl-C again to stop now."
                await serve_until_signal(server, signals, lambda: console.print(text))


def _check_voice(settings: ServerSettings, where: str, voices: tuple[str, ...]) -> None:
    """Only a loaded model knows its voices. Raises click.UsageError for a default that is none of them."""
    for config in settings.defaults.values():
        if config.voice and config.voice not in voices:
            known = ", ".join(voices) or "no voices to choose from"
            raise click.UsageError(f"{where}: {settings.model} has no voice {config.voice!r}; it has {known}")


def _announce(console: Console, settings: ServerSettings, server: RunningServer) -> None:
    scheme = "https" if settings.tls is not None else "http"
    host = "localhost" if is_loopback(settings.host) or settings.host in ("0.0.0.0", "::") else settings.host
    console.print(f"Ready. Open [bold]{scheme}://{host}:{server.port}/[/bold] and talk; Ctrl-C ends it.")
    if not is_loopback(settings.host) and not settings.api_keys:
        console.print("Anyone who reaches this address may use it (--no-keys).")


class _LoadingBar:
    """The model's progress: a bar on a terminal, a line for each stage elsewhere."""

    def __init__(self, console: Console, model: str) -> None:
        self.console = console
        self._model = model
        self._stage = ""
        self._progress: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> _LoadingBar:
        if self.console.is_terminal:
            columns = (TextColumn("Loading {task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
            self._progress = Progress(*columns, console=self.console, transient=True)
            self._task = self._progress.add_task(self._model, total=1.0)
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def show(self, stage: str, fraction: float) -> None:
        """``fraction`` of ``stage`` is done."""
        if self._progress is not None:
            self._progress.update(self._task, completed=fraction, description=f"{self._model}: {stage}")
        elif stage != self._stage:
            self._stage = stage
            log.info("loading %s: %s", self._model, stage)

    def stop(self) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
