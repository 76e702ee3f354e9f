"""The HTTP interface: what is known of pipelines, and orders to them. Knows starlette; all that it shows comes from
`view.py` and `metrics.py`.

Who may ask: on loopback anybody on this machine may look, by a name of loopback. Orders need the key, and so do all
figures where the address is not loopback's. Pages of other sites can neither look nor give orders.
"""

import asyncio
import functools
import hmac
import importlib.resources
import ipaddress
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlsplit

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.errors import PenstockError
from penstock.monitor import metrics, view
from penstock.monitor.jetstream import JetStreams
from penstock.monitor.openapi import description
from penstock.watch.store import Store

log = logging.getLogger("penstock")
EVERY = 1.0  # seconds between two events at least
FRESH = 0.5  # seconds for which metrics are not made again
MOST_BODY = 64 << 10
VERBS = ("stop", "start", "restart", "rewind")
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_ENCODED = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
SCRIPTS = ("app", "charts", "detail", "flow", "format", "jetstream", "live", "orders", "overview", "panels", "theme")
PAGES = {
    "": ("index.html", "text/html"),
    "style.css": ("style.css", "text/css"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
    "icon-alert.svg": ("icon-alert.svg", "image/svg+xml"),
    **{f"{name}.js": (f"{name}.js", "text/javascript") for name in SCRIPTS},
}


@dataclass(frozen=True)
class Access:
    """Who may do what. `key`: what orders, and all figures off loopback, must name."""

    host: str
    key: str = field(repr=False)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        return is_loopback(self.host)

    def refusal(self, request: Request) -> tuple[int, str] | None:
        """Why a request is not answered, with the status; None where it is."""
        named = (_parts(f"//{request.headers.get('host', '')}").hostname or "").lower()
        if self.is_loopback and not is_loopback(named):
            return 421, f"this address is for programs on this machine: ask for it as localhost, not as '{named[:80]}'."
        is_order = request.method not in ("GET", "HEAD")
        if not is_order and request.url.path.removeprefix("/") in PAGES:
            return None  # these files hold no figures, and a browser that opens a page or follows a link sends no key
        origin = request.headers.get("origin")
        site = request.headers.get("sec-fetch-site", "none")
        if site == "cross-site" or (origin and (_parts(origin).netloc != request.headers.get("host"))):
            return 403, "pages of other sites are not answered."
        if not is_order and self.is_loopback:
            return None
        given = request.headers.get("api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
        if not given:
            return 401, "this needs the key: send it as the header 'api-key'."
        if not hmac.compare_digest(given.encode(), self.key.encode()):
            return 403, "the key is wrong."
        return None


@functools.lru_cache(256)  # of every request, and there are few
def _parts(text: str) -> SplitResult:
    """The parts of an address; of what is none, empty ones."""
    try:
        return urlsplit(text)
    except ValueError:
        return urlsplit("")


@functools.lru_cache(256)
def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Api:
    """The routes, over one Store."""

    def __init__(
        self,
        store: Store,
        pipelines: view.Pipelines | None,
        measured: metrics.Metrics,
        access: Access,
        jetstream: JetStreams | None = None,
    ):
        self.jetstream = jetstream
        self.store, self.pipelines, self.measured, self.access = store, pipelines, measured, access
        self.began = time.time()
        self._text = ""  # the newest overview, made once for all who listen
        self._version = 0
        self._news = asyncio.Event()
        self._metrics, self._measured_at, self._measuring = b"", (-FRESH, -1), asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_ending = False

    def app(self) -> ASGIApp:
        """The application, which answers only those who may ask."""
        routes = [
            Route("/health", self.health),
            Route("/health/live", self.live),
            Route("/health/ready", self.health),
            Route("/stats", self.stats),
            Route("/metrics", self.metrics),
            Route("/events", self.events),
            Route("/openapi.json", self.openapi),
            Route("/jetstream", self.streams),
            Route("/pipelines", self.all),
            *(Route(path, self.all) for path in ("/sources", "/sinks")),
            *(Route(f"/{path}", _file(*page)) for path, page in PAGES.items()),
            # Names of queries may have slashes in them, so what ends in more than the key comes first.
            Route("/pipelines/{key:path}/checkpoints", self.checkpoints),
            Route("/pipelines/{key:path}/dead-letters", self.dead_letters),
            *(Route(f"{path}/{{key:path}}/{{verb}}", self.order, methods=["POST"])
              for path in ("/pipelines", "/sources", "/sinks")),
            *(Route(f"{path}/{{key:path}}", self.one) for path in ("/pipelines", "/sources", "/sinks")),
        ]  # fmt: skip
        handlers = {HTTPException: _said, Exception: _bug}
        return self._guarded(Starlette(routes=routes, lifespan=self._lifespan, exception_handlers=handlers))

    def _guarded(self, app: ASGIApp) -> ASGIApp:
        """Every request is judged before anything else, and every answer has the headers."""

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return

            async def with_headers(message: Message) -> None:
                if message["type"] == "http.response.start":
                    message["headers"] += _ENCODED
                await send(message)

            refusal = self.access.refusal(Request(scope))
            answer = JSONResponse({"error": refusal[1]}, refusal[0]) if refusal else app
            await answer(scope, receive, with_headers)

        return guarded

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        watching = asyncio.create_task(self._watch())
        yield
        watching.cancel()

    async def _watch(self) -> None:
        """Make a new overview once a second, and wake those who listen if it differs. Figures change also without an
        event: a query that tells nothing any more reads no rows a second.
        """
        while True:
            try:
                text = json.dumps(await run_in_threadpool(view.overview, self.store, self.pipelines))
            except Exception:  # those who listen must hear of the next one
                log.exception("the overview of pipelines could not be made")
                text = self._text
            if text != self._text:
                self._text, self._version = text, self._version + 1
                self._wake()
            await asyncio.sleep(EVERY)

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def end(self) -> None:
        """Send no more events, so that a server that stops need not cut off who listens. Any thread may ask."""
        self._is_ending = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    async def events(self, request: Request) -> Response:
        """The overview now, and whenever it changes. Who reads slowly misses what was in between, and delays nobody."""

        async def stream() -> AsyncIterator[str]:
            sent = 0  # before the first overview there is nothing to send
            while not self._is_ending:
                if self._version != sent:
                    sent = self._version
                    yield f"event: pipelines\ndata: {self._text}\n\n"
                    continue  # there may be news since
                try:
                    await asyncio.wait_for(self._news.wait(), 15)
                except TimeoutError:
                    yield ": still here\n\n"

        return StreamingResponse(stream(), media_type="text/event-stream")

    def live(self, request: Request) -> Response:
        """Whether the program answers at all."""
        return JSONResponse({"status": "live"})

    def health(self, request: Request) -> Response:
        """Whether all is well: 503 while a pipeline starts, has failed or waits to start again."""
        shown = view.overview(self.store, self.pipelines)
        ill = {each["key"]: each["error"] for each in shown if each["state"] == view.FAILED or each["error"]}
        starting = [each["key"] for each in shown if each["state"] == view.STARTING]
        is_ready = not ill and not starting
        status = "ready" if is_ready else "not ready"
        body = {"status": status, "pipelines": len(shown), "starting": starting, "errors": ill}
        return JSONResponse(body, 200 if is_ready else 503)

    def stats(self, request: Request) -> Response:
        """Figures of the whole program."""
        return JSONResponse(view.stats(self.store, self.pipelines, self.began))

    async def metrics(self, request: Request) -> Response:
        """Metrics for Prometheus. Whoever asks again within half a second gets the same, unless there is news."""
        async with self._measuring:
            now = time.monotonic(), self.store.changes
            if now[0] - self._measured_at[0] > FRESH or now[1] != self._measured_at[1]:
                self._metrics = await run_in_threadpool(metrics.text, self.measured)
                self._measured_at = now
        return Response(self._metrics, media_type=metrics.CONTENT_TYPE)

    def openapi(self, request: Request) -> Response:
        """The description of all this."""
        return JSONResponse(description())

    def streams(self, request: Request) -> Response:
        """The streams and consumers of JetStream servers, what is worst first; a list that may be empty."""
        return JSONResponse(self.jetstream.shown() if self.jetstream is not None else [])

    def all(self, request: Request) -> Response:
        """Every pipeline, in short."""
        return JSONResponse(view.overview(self.store, self.pipelines))

    def one(self, request: Request) -> Response:
        """One pipeline, with its batches, its shards, and the last hour."""
        key = request.path_params["key"]
        shown = view.one(self.store, self.pipelines, key)
        if shown is None:
            is_order = key.rpartition("/")[2] in VERBS
            hint = " An order is a POST." if is_order else ""
            raise HTTPException(404, f"there is no pipeline '{key[:80]}'.{hint}")
        return JSONResponse(shown)

    def checkpoints(self, request: Request) -> Response:
        """The batches in the checkpoint of a pipeline."""
        return self._asked("checkpoints", request)

    def dead_letters(self, request: Request) -> Response:
        """The newest dead letters of a pipeline."""
        return self._asked("dead_letters", request)

    async def order(self, request: Request) -> Response:
        """Tell a pipeline to stop, start, restart or go back."""
        verb = request.path_params["verb"]
        if verb not in VERBS:
            raise HTTPException(404, f"'{verb[:80]}' is no order. There are: {', '.join(VERBS)}.")
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > MOST_BODY:
                raise HTTPException(413, "that is too long for an order.")
        try:
            given = json.loads(bytes(body) or b"{}")
        except (ValueError, RecursionError):
            raise HTTPException(400, "the body is not JSON.") from None
        known = {"batch", "time", "positions", "new_query"} if verb == "rewind" else set()
        if not isinstance(given, dict):
            raise HTTPException(400, "the body must be a JSON object; of rewind, with 'batch', 'time' or 'positions'.")
        if unknown := sorted(set(given) - known):
            may = f"'{verb}' takes {', '.join(sorted(known))}" if known else f"'{verb}' takes nothing"
            raise HTTPException(400, f"'{unknown[0][:80]}' is not known: {may}.")
        return await run_in_threadpool(self._do, verb, request.path_params["key"], given)

    def _asked(self, verb: str, request: Request) -> Response:
        return self._do(verb, request.path_params["key"], {})

    def _do(self, verb: str, key: str, given: dict[str, Any]) -> Response:
        if self.pipelines is None:
            raise HTTPException(409, "these queries belong to a program, which alone can start and stop them.")
        if key not in (each.key for each in self.pipelines.all()):
            raise HTTPException(404, f"there is no pipeline '{key[:80]}'.")
        try:
            answer = self.pipelines.do(verb, key, **given)
        except PenstockError as error:
            raise HTTPException(409, str(error)) from None
        return JSONResponse(answer if not isinstance(answer, str) else {"done": answer})


def _file(name: str, kind: str) -> Callable[[Request], Response]:
    def page(request: Request) -> Response:
        content = importlib.resources.files("penstock.monitor").joinpath("page", name).read_bytes()
        return Response(content, media_type=f"{kind}; charset=utf-8")

    return page


async def _said(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code)


async def _bug(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": f"this is a fault of Penstock: {type(error).__name__}."}, 500)
