"""`penstock jetstream top`: streams and consumers in numbers, live. Knows typer, rich and the keyboard."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.cli.jetstream.asking import InJson, Words, options_of
from penstock.cli.jetstream.durations import seconds_of
from penstock.cli.lines import closed_pipe
from penstock.cli.pipelines import console
from penstock.cli.run import address_of
from penstock.cli.sentences import sentences
from penstock.clients.nats.options import NatsOptions
from penstock.errors import ConnectError
from penstock.kit.masking import harmless
from penstock.operate.figures import (
    ConsumerFigures,
    Look,
    StreamFigures,
    as_json,
    duration,
    size_text,
    trouble,
    worst_consumers,
    worst_streams,
)
from penstock.operate.watching import Seen, Watching

if TYPE_CHECKING:
    from penstock.monitor.server import Address

# Columns of a terminal: below these, tables have fewer columns.
WIDE, NARROW = 120, 80
# Rows of each table where nothing limits them but sense.
MOST = 20
# Lines around the rows of both tables.
AROUND = 12
Column = tuple[str, Callable[[Any], str]]


def top(
    options: Words = None,
    stream: Annotated[list[str] | None, typer.Option(help="Only this stream; may be repeated.")] = None,
    interval: Annotated[str, typer.Option(metavar="DURATION", help="Time between two looks.")] = "2s",
    once: Annotated[bool, typer.Option("--once", help="Look twice for rates, print that, and end.")] = False,
    in_json: InJson = False,
    http: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Serve the page and metrics, such as at 127.0.0.1:8686.")
    ] = None,
) -> None:
    """Watch streams and consumers, what is worst first: penstock jetstream top servers=nats://127.0.0.1:4222.

    In a terminal, q ends it. With --json each look is a line. With --http the same is on a page and in /metrics, which
    needs the extra 'observe'. Exit code 1 where the server does not answer and --once was given.
    """
    with sentences(), closed_pipe():
        given, every = options_of(options), seconds_of(interval, "--interval")
        address = address_of(http, None, None)
        with ExitStack() as stack:
            if address is not None:
                url = stack.enter_context(_served(given, stream or (), address))
                Console(stderr=True).print(f"serving {url}", highlight=False, markup=False)
            watching = Watching(given, stream or ())
            stack.callback(watching.close)
            if once:
                _once(watching, every, in_json)
            elif in_json:
                _forever(watching, every, lambda seen: print(json.dumps(line(seen)), flush=True))
            elif (out := console()).is_terminal:
                _live(watching, every, out)
            else:
                _forever(watching, every, lambda seen: out.print(drawn(seen, out.width, MOST)))


def line(seen: Seen) -> dict[str, Any]:
    """A look as a line of JSON."""
    look = as_json(seen.look) if seen.look is not None and not seen.error else {}
    return {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "error": harmless(seen.error), **look}


def _once(watching: Watching, every: float, in_json: bool) -> None:
    seen = watching.look()
    if not seen.error:
        time.sleep(every)
        seen = watching.look()
    if seen.error:
        raise ConnectError(seen.error)
    if in_json:
        print(json.dumps(line(seen)))
    else:
        out = console()
        out.print(drawn(seen, out.width, MOST))


def _forever(watching: Watching, every: float, show: Callable[[Seen], None]) -> None:
    while True:
        began = time.monotonic()
        show(watching.look())
        time.sleep(max(0.0, every - (time.monotonic() - began)))


def _live(watching: Watching, every: float, out: Console) -> None:
    """A table that is drawn again and again, until q or Ctrl-C."""
    over = threading.Event()

    def looks() -> None:
        while not over.is_set():
            began = time.monotonic()
            watching.look()
            over.wait(max(0.05, every - (time.monotonic() - began)))

    def now() -> Any:
        return drawn(watching.seen, out.width, max(3, (out.height - AROUND) // 2))

    looking = threading.Thread(target=looks, daemon=True)
    looking.start()
    try:
        with _keys(over), Live(get_renderable=now, console=out, screen=True, refresh_per_second=2):
            over.wait()
    finally:
        over.set()
        looking.join(1)


@contextmanager
def _keys(over: threading.Event) -> Iterator[None]:
    """While it is entered, the key q sets `over`. Where keys cannot be read one by one, Ctrl-C is left."""
    before = None
    with suppress(Exception):  # no such modules, or no terminal
        import termios
        import tty

        before = termios.tcgetattr(sys.stdin)
        tty.setcbreak(sys.stdin)
    if before is not None:
        threading.Thread(target=_read_keys, args=(over,), daemon=True).start()
    try:
        yield
    finally:
        if before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _read_keys(over: threading.Event) -> None:
    while not over.is_set():
        if sys.stdin.read(1) in ("q", "Q", ""):
            over.set()


@contextmanager
def _served(options: NatsOptions, names: Sequence[str], address: "Address") -> Iterator[str]:
    """The page and metrics about one server, without Spark. The address, with a key that was made up for a terminal."""
    from penstock.monitor.app import Access, Api
    from penstock.monitor.jetstream import JetStreams
    from penstock.monitor.metrics import Metrics
    from penstock.monitor.server import Server, new_key
    from penstock.watch.store import Store

    store, watched = Store(), JetStreams([options], names)
    api = Api(store, None, Metrics(store, None, watched), Access(address.host, address.key or new_key()), watched)
    server = Server(api.app(), address, api.end).start()
    try:
        yield server.url
    finally:
        server.stop()
        watched.close()


def drawn(seen: Seen, width: int, most: int) -> Group:
    """Both tables: the worst `most` rows of each, and the others added up. A narrow terminal has fewer columns."""
    look = seen.look
    parts: list[Any] = [_head(seen)]
    if look is not None:
        if look.streams:
            parts.append(_streams(look, width, most))
        if look.consumers:
            parts.append(_consumers(look, width, most))
        for name in look.missing:
            parts.append(Text(f"stream {harmless(name)} does not answer: it has no leader", "red"))
        for text in (*look.absent, *look.problems):
            parts.append(Text(harmless(text), "yellow"))
        if look.unasked:
            parts.append(Text(f"consumers of {look.unasked:,} other streams were not asked for", "dim"))
    return Group(*parts)


def _head(seen: Seen) -> Text:
    if seen.look is None:
        return Text(harmless(seen.error) if seen.error else "connecting ...", "red" if seen.error else "")
    look = seen.look
    name = look.server.get("cluster") or look.server.get("name") or ""
    stored = sum(each.size for each in look.streams)
    text = Text(
        f"{harmless(name)} {harmless(look.server.get('version', ''))}  {len(look.streams):,} streams, "
        f"{sum(each.messages for each in look.streams):,} messages, {size_text(stored)}, "
        f"{sum(each.consumers for each in look.streams):,} consumers"
    )
    if seen.error:
        text.append(
            f"\n{harmless(seen.error)} What is below is {duration(max(0.0, time.time() - seen.at))} old.", "red"
        )
    return text


def _streams(look: Look, width: int, most: int) -> Table:
    now = time.time()
    columns: list[Column] = [
        ("messages", lambda s: f"{s.messages:,}"),
        ("bytes", lambda s: size_text(s.size)),
        ("in/s", lambda s: _rate(s.rate)),
        ("out/s", lambda s: _rate(s.out_rate)),
        ("consumers", lambda s: f"{s.consumers:,}"),
        ("full", lambda s: f"{s.full:.0%}" if s.full else ""),
        ("last", lambda s: "" if s.last_time is None else f"{duration(max(0.0, now - s.last_time / 1e6))} ago"),
        ("first - last", lambda s: f"{s.first:,} - {s.last:,}"),
        ("replicas", _replicas),
    ]
    columns = columns[: 9 if width >= WIDE else 5 if width >= NARROW else 3]
    table = Table("stream")
    for name, _ in columns:
        table.add_column(name, justify="right")
    every = worst_streams(look)
    for each in every[:most]:
        style = "red" if each.behind else "yellow" if each.full >= 1 else ""
        table.add_row(Text(harmless(each.name), style, overflow="ellipsis"), *(Text(cell(each)) for _, cell in columns))
    if rest := every[most:]:
        table.add_row(*_summed(rest, columns))
    return table


def _summed(rest: Sequence[StreamFigures], columns: Sequence[Column]) -> list[str]:
    """The last row: what all streams have that have no row."""
    totals = {
        "messages": f"{sum(each.messages for each in rest):,}",
        "bytes": size_text(sum(each.size for each in rest)),
        "in/s": _rate(sum(each.rate or 0.0 for each in rest)),
        "consumers": f"{sum(each.consumers for each in rest):,}",
    }
    return [f"{len(rest):,} others", *(totals.get(name, "") for name, _ in columns)]


def _consumers(look: Look, width: int, most: int) -> Table:
    columns: list[Column] = [
        ("unread", lambda c: f"{c.pending:,}"),
        ("given/s", lambda c: _rate(c.rate)),
        ("behind", lambda c: "" if c.lag_seconds is None else duration(c.lag_seconds)),
        ("unacked", lambda c: f"{c.ack_pending:,}"),
        ("again", lambda c: f"{c.redelivered:,}"),
        ("pulls", lambda c: f"{c.waiting:,}"),
    ]
    columns = columns[: 6 if width >= WIDE else 4 if width >= NARROW else 2]
    table = Table("consumer")
    for name, _ in columns:
        table.add_column(name, justify="right")
    if width >= NARROW:
        table.add_column("")
    every = worst_consumers(look)
    for each in every[:most]:
        table.add_row(*_consumer_row(each, columns, width))
    if rest := every[most:]:
        pending = sum(each.pending for each in rest)
        table.add_row(f"{len(rest):,} others", f"{pending:,}")
    return table


def _consumer_row(each: ConsumerFigures, columns: Sequence[Column], width: int) -> list[Text]:
    wrong = trouble(each)
    style = "" if wrong is None else "red" if wrong.harm > 1 else "yellow"
    name = Text(harmless(f"{each.stream}/{each.name}"), style, overflow="ellipsis")
    return [
        name,
        *(Text(cell(each)) for _, cell in columns),
        *([Text(wrong.text, style)] if wrong and width >= NARROW else []),
    ]


def _rate(rate: float | None) -> str:
    return "" if rate is None else f"{rate:,.0f}" if rate >= 10 or not rate else f"{rate:,.1f}"


def _replicas(each: StreamFigures) -> str:
    away = f", {', '.join(each.behind)} away" if each.behind else ""
    return f"{each.replicas}{f' ({each.leader})' if each.leader else ''}{away}"
