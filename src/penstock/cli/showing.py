"""How `penstock run` goes, for who looks on: a live table in a terminal, and lines or JSON where there is none. Knows
rich, and what pipelines tell of themselves.
"""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

MINUTE = 60.0
REDRAWN = 2  # times a second
WIDE, NARROW = 100, 60  # columns of a terminal
_COLOURS = {"running": "green", "failed": "red", "waiting to restart": "yellow"}
# What a line of JSON tells of each pipeline.
_TOLD = ("key", "state", "rate", "lag", "lag_seconds", "batch", "messages_read", "errors_count", "restarts", "error")
Look = Callable[[], Sequence[Mapping[str, Any]]]


class Log(StrEnum):
    """What to show while pipelines run."""

    AUTO = "auto"
    TABLE = "table"
    PLAIN = "plain"
    JSON = "json"


class Display:
    """Shows what is said, and in between how things are: all the time in a table, else once a minute."""

    def __init__(self, style: Log, console: Console, keys: Collection[str] = ()):
        self.console, self.keys = console, keys
        self.style = style if style is not Log.AUTO else Log.TABLE if console.is_terminal else Log.PLAIN
        handler = _Said(self) if self.style is Log.TABLE else logging.StreamHandler()
        lines = logging.Formatter(None if self.style is Log.TABLE else "%(asctime)s %(message)s", "%H:%M:%S")
        handler.setFormatter(_AsJson() if self.style is Log.JSON else lines)
        logging.basicConfig(handlers=[handler])

    def say(self, text: str) -> None:
        """Print lines, with the time before them. As JSON, what is said of a pipeline has its key apart."""
        for line in text.splitlines():
            if self.style is Log.JSON:
                key, _, rest = line.partition(": ")
                print(_line(rest, pipeline=key) if key in self.keys else _line(line), flush=True)
            else:
                shown = f"{time.strftime('%H:%M:%S')} {line}"
                self.console.print(shown, highlight=False, markup=False, soft_wrap=True)

    @contextlib.contextmanager
    def showing(self, look: Look) -> Iterator[None]:
        """Show how pipelines are, while they run."""
        if self.style is Log.TABLE:
            with Live(
                get_renderable=lambda: table(look(), self.console.width),
                console=self.console,
                refresh_per_second=REDRAWN,
            ):
                yield
            return
        over = threading.Event()
        thread = threading.Thread(target=self._once_a_minute, args=(look, over), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _once_a_minute(self, look: Look, over: threading.Event) -> None:
        while not over.wait(MINUTE):
            shown = look()
            told = [{name: each[name] for name in _TOLD} for each in shown]
            if self.style is Log.JSON:
                print(_line(summary(shown), pipelines=told), flush=True)
            else:
                self.say(summary(shown))


def table(shown: Sequence[Mapping[str, Any]], width: int = 120) -> Table:
    """A row for each pipeline, what is wrong first; its error stands below it. A narrow terminal has fewer columns."""
    figures: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "records/s": lambda each: f"{each['rate']:,.0f}",
        "lag": lambda each: "" if each["lag"] is None else f"{each['lag']:,}",
        "behind": _seconds,
        "errors": lambda each: f"{each['errors_count']:,}",
        "restarts": lambda each: f"{each['restarts']:,}",
        "batch": lambda each: "" if each["batch"] is None else f"{each['batch']:,}",
        "records": lambda each: f"{each['messages_read']:,}",
    }
    names = list(figures)[: 7 if width >= WIDE else 3 if width >= NARROW else 0]
    drawn = Table("pipeline", "state")
    for name in names:
        drawn.add_column(name, justify="right")
    for each in shown:
        state = Text(_state(each), _COLOURS.get(each["state"], "dim"))
        drawn.add_row(Text(each["key"]), state, *(figures[name](each) for name in names))
    if broken := [f"{each['key']}: {each['error']}" for each in shown if each["error"]]:
        drawn.caption = Text("\n".join(broken), "red")
        drawn.caption_justify = "left"
    return drawn


def summary(shown: Sequence[Mapping[str, Any]]) -> str:
    """How all are, in one line."""
    if len(shown) == 1:
        (one,) = shown
        return f"{one['key']}: {_state(one)}, {_figures(shown)}"
    states = dict.fromkeys(each["state"] for each in shown)
    counts = (f"{sum(each['state'] == state for each in shown)} {state}" for state in states)
    return f"{len(shown)} pipelines: {', '.join(counts)}, {_figures(shown)}"


def _figures(shown: Sequence[Mapping[str, Any]]) -> str:
    parts = [
        f"{sum(each['messages_read'] for each in shown):,} records",
        f"{sum(each['rate'] for each in shown):,.0f} a second",
    ]
    lags = [each for each in shown if each["lag"] is not None]
    if lags:
        late = max(lags, key=lambda each: each["lag_seconds"] or 0.0)
        behind = f" ({_seconds(late)})" if late["lag_seconds"] else ""
        parts.append(f"lag {sum(each['lag'] for each in lags):,}{behind}")
    if errors := sum(each["errors_count"] for each in shown):
        parts.append(f"{errors:,} errors")
    return ", ".join(parts)


def _state(each: Mapping[str, Any]) -> str:
    return each["state"] if each["restarts_in"] is None else f"restarts in {each['restarts_in']:.0f} s"


def _seconds(each: Mapping[str, Any]) -> str:
    late = each["lag_seconds"]
    return "" if late is None else f"{late:,.1f} s" if late < 10 else f"{late:,.0f} s"


class _Said(logging.Handler):
    """Lines of the log above the table, which they would tear."""

    def __init__(self, display: Display):
        super().__init__()
        self.display = display

    def emit(self, record: logging.LogRecord) -> None:
        self.display.say(self.format(record))


class _AsJson(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        error = {"error": self.formatException(record.exc_info)} if record.exc_info else {}
        return _line(record.getMessage(), level=record.levelname.lower(), logger=record.name, **error)


def _line(message: str, **more: Any) -> str:
    return json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "message": message, **more})
