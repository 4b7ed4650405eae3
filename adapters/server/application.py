"""What is answered at which path. Plain requests are answered here; a WebSocket is handed to its dialect."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_server_stream

from adapters import page
from adapters.server import access
from adapters.server.client_secrets import ClientSecrets, read_request
from adapters.server.conversation import Conversation
from adapters.server.http import (
    BadRequest,
    HttpConnection,
    Request,
    Response,
    error_response,
    json_response,
)
from adapters.server.metrics import CONTENT_TYPE, Metrics
from adapters.server.patience import Patience
from adapters.server.service import Service
from adapters.server.settings import ServerSettings
from adapters.wire.dialect import Dialect
from adapters.wire.dialects import DUPLEX, MINICPMO, MOSHI, OPENAI
from adapters.wire.moshi.encoding import codec_is_here
from adapters.wire.problems import Problem
from adapters.wire.served import Served
from core.ports.described import described

log = logging.getLogger("duologue.server")

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""The WebSocket layer's bound, above the dialects' own: those answer with an error, this one closes with 1009."""

STORE_UNAVAILABLE = "store_unavailable"
SESSIONS_FULL = "sessions_full"
RECEIVE_BYTES = 64 * 1024
MESSAGES_AHEAD = 2
REALTIME_PATH = "/v1/realtime"
SECRETS_PATH = "/v1/realtime/client_secrets"
MOSHI_PATH = "/api/chat"
MINICPMO_PREFIX = "/ws/duplex/"
_READ_AS_WORDS = ("connection", "upgrade", "sec-websocket-protocol", "sec-websocket-extensions")
_DUPLEX_ON = frozenset({"1", "true", "on"})
_DUPLEX_OFF = frozenset({"", "0", "false", "off", "no"})


class Application:
    """One server's connections. ``service`` is None while the model loads."""

    def __init__(self, settings: ServerSettings, metrics: Metrics) -> None:
        self.settings = settings
        self.metrics = metrics
        self.service: Service | None = None
        self.draining = False
        self.patience = Patience()
        self.connections = 0
        self.client_secrets = ClientSecrets(settings.api_keys)
        self._routes: dict[str, Callable[[Request], Response]] = {
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/metrics": self._metrics,
            "/v1/models": self._models,
        }

    # -- connections ----------------------------------------------------------------------------------------------

    async def handle(self, stream: trio.abc.Stream) -> None:
        """One TCP connection. The one boundary: whatever goes wrong in here is logged and ends this connection only."""
        self.connections += 1
        try:
            async with stream:
                await self._serve(await self._secured(stream))
        except (trio.BrokenResourceError, trio.TooSlowError):
            log.debug("a connection was lost before its first request")
        except Exception as error:  # noqa: BLE001 - logged, but for its text
            log.error("a connection failed: %s", described(error))
        finally:
            self.connections -= 1

    async def _secured(self, stream: trio.abc.Stream) -> trio.abc.Stream:
        """The stream after its TLS handshake, where there is one to make. Raises what ``_serve`` takes for a lost peer."""
        if self.settings.tls is None:
            return stream
        secured = trio.SSLStream(stream, self.settings.tls, server_side=True, https_compatible=True)
        with self.patience.fail_after(self.settings.head_timeout_s):
            await secured.do_handshake()
        return secured

    async def _serve(self, stream: trio.abc.Stream) -> None:
        http = HttpConnection(stream)
        timeout_s = self.settings.head_timeout_s
        try:
            more = True
            while more:
                request = await http.receive(self.patience.move_on_after(timeout_s))
                if request is None:
                    return
                if request.upgrades:
                    await self._upgrade(request, http)
                    return
                with self.patience.fail_after(self.settings.send_timeout_s):
                    more = await http.respond(
                        self.respond(request), head_only=request.method == "HEAD", last=self._crowded() or self.draining
                    )
                timeout_s = self.settings.keep_alive_s
        except BadRequest as bad:
            with self.patience.move_on_after(self.settings.send_timeout_s):
                await http.refuse(bad)
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            return  # the peer went away, or does not read

    def _crowded(self) -> bool:
        return self.connections > self.settings.connections_max

    # -- plain requests -------------------------------------------------------------------------------------------

    def respond(self, request: Request) -> Response:
        """The answer to a plain request."""
        if self._crowded():
            return error_response(503, "too_many_connections", "Too many connections; try again later.", RETRY)
        route = self._routes.get(request.path)
        asset = page.asset_for_path(request.path) if route is None else None
        if route is None and asset is None:
            if request.path == SECRETS_PATH:
                return self._client_secret(request)
            if _dialect_at(request) is not None:
                headers = (("upgrade", "websocket"), ("connection", "upgrade"))
                return error_response(426, "upgrade_required", "This path is a WebSocket.", headers)
            return error_response(404, "not_found", "There is nothing at this path.")
        if request.method not in ("GET", "HEAD"):
            return error_response(405, "method_not_allowed", "Only GET is answered here.", (("allow", "GET, HEAD"),))
        if request.path.startswith("/v1/") and self._identify(request) is None:
            return UNAUTHORIZED
        if route is not None:
            return route(request)
        assert asset is not None
        return _asset_response(request, asset)

    def _healthz(self, request: Request) -> Response:
        return json_response(200, {"status": "ok"})

    def _readyz(self, request: Request) -> Response:
        reason = self.not_ready()
        if reason is None:
            return json_response(200, {"ready": True})
        detail = self._detail(reason)
        return json_response(503, {"ready": False, "reason": reason, **({"detail": detail} if detail else {})}, RETRY)

    def _detail(self, reason: str) -> str | None:
        """More on a reason, for a person."""
        if self.service is None:
            return None
        if reason == STORE_UNAVAILABLE:
            return self.service.supervisor.store_fault
        if reason != SESSIONS_FULL:
            return None
        held, worker = self.service.supervisor.statistics(), self.service.runtime.statistics()
        return f"{held.sessions} of {held.sessions_max} sessions, {worker.workers_up} of {worker.workers} workers up"

    def not_ready(self) -> str | None:
        """Why no new session can be opened now, None when one can."""
        if self.draining:
            return "draining"
        if self.service is None:
            return "loading"
        if self.service.runtime.capabilities is None:
            return "runtime_restarting"
        if self.service.supervisor.store_fault is not None:
            return STORE_UNAVAILABLE
        return SESSIONS_FULL if self.service.admission.is_full else None

    def _metrics(self, request: Request) -> Response:
        return Response(200, self.metrics.render(), CONTENT_TYPE)

    def _models(self, request: Request) -> Response:
        model: dict[str, Any] = {
            "id": self.settings.model,
            "object": "model",
            "created": 0,
            "owned_by": "duologue",
            "aliases": list(self.settings.model_aliases),
        }
        capabilities = self.service.runtime.capabilities if self.service is not None else None
        if capabilities is not None:
            model["unit_ms"] = capabilities.unit_ms
            model["output_rate"] = capabilities.output_rate
            model["voices"] = list(capabilities.voices)
            model["recommended_prebuffer_ms"] = capabilities.prebuffer_ms
        return json_response(200, {"object": "list", "data": [model]})

    def _served(self) -> Served:
        """What clients may ask for by name."""
        capabilities = self.service.runtime.capabilities if self.service is not None else None
        voices = None if capabilities is None else capabilities.voices
        return Served(self.settings.model, self.settings.model_aliases, voices)

    def _identify(self, request: Request) -> access.Identity | None:
        return access.identify(request, self.settings, self.client_secrets)

    def _client_secret(self, request: Request) -> Response:
        """An ephemeral key for a browser; only for who has a real one."""
        if request.method != "POST":
            return error_response(405, "method_not_allowed", "Only POST is answered here.", (("allow", "POST"),))
        identity = self._identify(request)
        if identity is None or identity.ephemeral:
            return UNAUTHORIZED
        if not access.origin_allowed(request, self.settings):
            return FOREIGN_ORIGIN
        try:
            session, life_s = read_request(request.body)
            OPENAI.serving(self._served()).open_config(session, self.settings.defaults_of(OPENAI.name))
            value, expires_at = self.client_secrets.make(identity.key, session, life_s, int(time.time()))
        except Problem as problem:
            return error_response(400, OPENAI.rename(problem.code), problem.message, param=problem.param)
        told = {"type": "realtime", "object": "realtime.session", "model": self.settings.model, **session}
        answer = {"value": value, "expires_at": expires_at, "session": told}
        return json_response(200, answer, (("cache-control", "no-store"),))

    # -- WebSockets -----------------------------------------------------------------------------------------------

    async def _upgrade(self, request: Request, http: HttpConnection) -> None:
        dialect, identity = dialect_of(request), self._identify(request)
        refusal = self._upgrade_refusal(request, dialect, identity)
        if refusal is not None or dialect is None or identity is None or self.service is None:
            self.metrics.upgrades.labels("refused").inc()
            assert refusal is not None
            with self.patience.fail_after(self.settings.send_timeout_s):
                await http.respond(refusal, last=True)
            return
        self.metrics.upgrades.labels("accepted").inc()
        stream = http.upgraded()
        async with trio.open_nursery() as nursery:
            connection = await self._shake_hands(request, stream, nursery)
            if connection is not None:
                stream.close_reason = lambda: connection.closed
                await Conversation(self.service, dialect, connection, stream, request.query, identity).run()
                with self.patience.move_on_after(self.settings.send_timeout_s):
                    await connection.aclose()
                    await stream.aclose()
            nursery.cancel_scope.cancel()

    async def _shake_hands(
        self, request: Request, stream: trio.abc.Stream, nursery: trio.Nursery
    ) -> WebSocketConnection | None:
        """The open WebSocket; None when the peer went away meanwhile, or sent what only looked like a handshake."""
        chosen = access.SUBPROTOCOL if access.SUBPROTOCOL in access.subprotocols(request) else None
        with self.patience.move_on_after(self.settings.head_timeout_s):
            proposal = await wrap_server_stream(
                nursery,
                stream,
                message_queue_size=MESSAGES_AHEAD,
                max_message_size=MESSAGE_BYTES_MAX,
                receive_buffer_size=RECEIVE_BYTES,
            )
            try:
                return await proposal.accept(subprotocol=chosen)
            except ConnectionClosed:
                return None
        return None

    def _upgrade_refusal(
        self, request: Request, dialect: Dialect | None, identity: access.Identity | None
    ) -> Response | None:
        """Why this request gets no WebSocket; in HTTP, since there is nothing else to say it in."""
        if dialect is None:
            return error_response(404, "not_found", "There is no WebSocket at this path.")
        if request.method != "GET" or request.header("sec-websocket-version") != "13":
            headers = (("sec-websocket-version", "13"),)
            return error_response(426, "bad_handshake", "A WebSocket handshake of version 13 is understood.", headers)
        if not _is_key(request.header("sec-websocket-key")):
            return error_response(400, "bad_handshake", "'Sec-WebSocket-Key' is not 16 bytes of base64.")
        unreadable = _unreadable_header(request)
        if unreadable is not None:
            return error_response(400, "bad_handshake", f"The header '{unreadable}' cannot be read.", param=unreadable)
        if identity is None:
            return UNAUTHORIZED
        if not access.origin_allowed(request, self.settings):
            return FOREIGN_ORIGIN
        if self._crowded():
            return error_response(503, "too_many_connections", "Too many connections; try again later.", RETRY)
        if self.draining or self.service is None:
            text = "The server is shutting down." if self.draining else "The model is still loading; try again soon."
            return error_response(503, "shutdown" if self.draining else "loading", text, RETRY, retryable=True)
        return self._dialect_refusal(request, dialect, self.service)

    def _dialect_refusal(self, request: Request, dialect: Dialect, service: Service) -> Response | None:
        """What the dialect itself holds against the URL, or lacks to speak."""
        if dialect is OPENAI and request.query.get("duplex", "").lower() not in _DUPLEX_OFF:
            text = f"'duplex' is one of {', '.join(sorted(_DUPLEX_ON))}; leave it out for OpenAI's events."
            return error_response(400, "invalid_value", text, param="duplex")
        if dialect is MOSHI and not codec_is_here():
            text = "This dialect needs an Opus codec: the server's environment lacks the extra duologue[moshi]."
            return error_response(501, "unsupported", text)
        try:
            dialect.opening(request.query, service.voices)
            if dialect in (OPENAI, DUPLEX) and request.query.get("model"):
                self._served().check_model(request.query["model"], "model")
        except Problem as problem:
            status = 404 if problem.code == "model_not_found" else 400
            return error_response(status, problem.code, problem.message, param=problem.param)
        return None


def dialect_of(request: Request) -> Dialect | None:
    """Which dialect a path and its query name."""
    found = _dialect_at(request)
    if found is not OPENAI:
        return found
    return DUPLEX if request.query.get("duplex", "").lower() in _DUPLEX_ON else OPENAI


def _dialect_at(request: Request) -> Dialect | None:
    path = unquote(request.path)
    if path.startswith(MINICPMO_PREFIX) and path != MINICPMO_PREFIX:
        return MINICPMO
    return {REALTIME_PATH: OPENAI, "/v1/duplex": DUPLEX, MOSHI_PATH: MOSHI}.get(path)


def _unreadable_header(request: Request) -> str | None:
    """The first header of an upgrade that the WebSocket library would stumble over: it takes a name of a host, and words in
    ASCII, for granted."""
    try:
        request.header("host").encode("latin-1").decode("idna")
    except UnicodeError:
        return "host"
    return next((name for name in _READ_AS_WORDS if not request.header(name).isascii()), None)


def _is_key(text: str) -> bool:
    return len(text) == 24 and text.endswith("==") and text[:-2].replace("+", "a").replace("/", "a").isalnum()


def _asset_response(request: Request, asset: page.Asset) -> Response:
    headers = (("etag", asset.etag), ("cache-control", "no-cache"), *_PAGE_HEADERS)
    known = [tag.strip().removeprefix("W/") for tag in request.header("if-none-match").split(",")]
    if asset.etag in known:
        return Response(304, b"", asset.content_type, headers)
    return Response(200, asset.body, asset.content_type, headers)


RETRY = (("retry-after", "2"),)
UNAUTHORIZED = error_response(
    401,
    "invalid_api_key",
    "This server asks for an API key of its own: the one that it was started with (--api-key).",
    (("www-authenticate", "Bearer"),),
)
FOREIGN_ORIGIN = error_response(403, "origin_not_allowed", "Pages of that origin may not connect.")
_PAGE_HEADERS = tuple(
    (name.lower(), value) for name, value in page.SECURITY_HEADERS.items() if name.lower() != "x-content-type-options"
)
