"""`penstock put`: records from words or from standard input into a stream. Knows typer and the contract of sinks; knows
no server.
"""

import os
import queue
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, NamedTuple

import pyarrow as pa
import typer
from typer.core import TyperCommand

from penstock.arrow.types import HEADERS
from penstock.cli.formats import format_names, is_option, options_to_write, parsed, plain
from penstock.cli.sentences import sentences
from penstock.cli.tail import tell, told_on_stderr
from penstock.errors import OptionError, PenstockError, ProtocolError
from penstock.kit.contract import Beginning, Origin, Sink
from penstock.kit.retry import at_once

# Lines wait at most so many seconds for others, and are written together with at most so many lines and bytes.
WAIT, MOST_LINES, MOST_BYTES = 0.5, 10_000, 4 << 20
_CHUNK = 1 << 16


class WithValues(TyperCommand):
    """A command where every word behind `--` is a value, also one that looks like an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put what stands behind `--` aside."""
        if "--" in args:
            at = args.index("--")
            args, ctx.obj = args[:at], args[at + 1 :]
        return super().parse_args(ctx, args)


def put(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="FORMAT", autocompletion=format_names)],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="OPTION=VALUE... [VALUE...]", autocompletion=options_to_write)
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="All of standard input is one record.")] = False,
    header: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="A header of each record.")] = None,
    key: Annotated[str | None, typer.Option(help="The key of each record, where the format has keys.")] = None,
    column: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Another column, such as partitionKey=a.")
    ] = None,
) -> None:
    """Write records: the values given, or else each line of standard input: penstock put jetstream subject=orders.eu.

    Options come first, and the values after them. Behind -- every word is a value.
    """
    with sentences(), told_on_stderr():
        format = plain(name)
        words = list(options or ())
        begins = next((at for at, word in enumerate(words) if not is_option(word)), len(words))
        values = words[begins:] + list(ctx.obj or ())
        if whole and values:
            raise OptionError(
                "--whole takes one record from standard input, and values are given besides: leave out one."
            )
        settings = _settings(format, parsed(words[:begins]))
        columns = _columns(header or (), key, column or ())
        writing = Writing(format, settings, columns)
        try:
            writing.check()
            for some in [[os.fsencode(value) for value in values]] if values else _stdin(whole):
                writing.write(some)
        except PenstockError as error:
            if writing.count:
                error.add(f"Before that, {_records(writing.count)} written.")
            raise
        except KeyboardInterrupt:
            tell(f"stopped; {_records(writing.count)} written")
            raise typer.Exit(130) from None
    tell(f"{_records(writing.count)} written")


class Column(NamedTuple):
    """A column that has the same value in every record."""

    name: str
    value: Any
    type: pa.DataType


class Writing:
    """Records on their way into a sink, some at a time. `count` are those that the server has confirmed."""

    def __init__(self, format: Any, options: Any, columns: list[Column]):
        self.format, self.options, self.count = format, options, 0
        self.columns = _accepted(format, options, columns)
        self.schema = _schema(self.columns)

    def check(self) -> None:
        """Reach the server, so that a wrong address or a missing stream is told at once."""
        sink = self._open()
        try:
            at_once(sink.check)
        finally:
            sink.close()

    def write(self, values: list[bytes]) -> None:
        """Write records, and return when the server has them. A lost connection is tried again as the options say."""
        origin = Origin(Origin.single(), 0, 0)  # what is written together is one df.write
        retry = self.options.retry("writing")
        sink = self._open()
        try:
            if isinstance(sink, Beginning):
                sink.begin(retry.run(sink.ends))
            receipt = sink.write(iter([self._batch(values)]), origin)
            if receipt.rows != len(values):
                raise ProtocolError(f"{len(values):,} records were written, and {receipt.rows:,} are confirmed.")
            retry.run(lambda: sink.commit([receipt], None))
        finally:
            sink.close()
        self.count += len(values)

    def _open(self) -> Sink:
        sink: Sink = self.format.open_sink(self.options, self.schema)
        return sink

    def _batch(self, values: list[bytes]) -> pa.RecordBatch:
        same = [pa.array([each.value], each.type).take(pa.array([0] * len(values))) for each in self.columns]
        return pa.RecordBatch.from_arrays([pa.array(values, pa.binary()), *same], schema=self.schema)


def _settings(format: Any, raw: dict[str, str]) -> Any:
    """The options. JetStream's ledger is for writes that may be run again later, and this one is not known again."""
    options = format.parse_sink(raw)
    if "ledger" in type(options).model_fields and "ledger" not in options.model_fields_set:
        options = options.model_copy(update={"ledger": "none"})
    return options


def _columns(headers: Iterable[str], key: str | None, others: Iterable[str]) -> list[Column]:
    columns = []
    pairs = [_pair("--header", text) for text in headers]
    if pairs:
        values = [{"key": name, "value": os.fsencode(value)} for name, value in pairs]
        columns.append(Column("headers", values, HEADERS))
    if key is not None:
        columns.append(Column("key", os.fsencode(key), pa.binary()))
    columns += [Column(name, value, pa.string()) for name, value in (_pair("--column", text) for text in others)]
    names = [each.name for each in columns]
    if twice := [name for name in names if names.count(name) > 1 or name == "value"]:
        raise OptionError(f"the column '{twice[0]}' is given twice. Give it once, and the value of a record as a word.")
    return columns


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise OptionError(f"{option} '{text}' has no value: write {option} name=value.")
    return name, value


def _accepted(format: Any, options: Any, columns: list[Column]) -> list[Column]:
    """The columns, with numbers where a format takes a number: the command line has only text."""
    try:
        format.open_sink(options, _schema(columns))
    except OptionError as error:
        numbers = [_as_number(each) for each in columns]
        try:
            format.open_sink(options, _schema(numbers))
        except OptionError:
            pass
        else:
            return numbers
        said, in_spark, _ = str(error).partition(" Leave ")
        if not in_spark:
            raise
        raise OptionError(f"{said} Leave out what says so: --header, --key or --column.") from None
    return columns


def _as_number(column: Column) -> Column:
    if column.type == pa.string() and column.value.isdigit() and len(column.value) < 19:
        return Column(column.name, int(column.value), pa.int64())
    return column


def _schema(columns: list[Column]) -> pa.Schema:
    return pa.schema([("value", pa.binary()), *((each.name, each.type) for each in columns)])


def _records(count: int) -> str:
    return f"{count:,} record was" if count == 1 else f"{count:,} records were"


def _stdin(whole: bool) -> Iterator[list[bytes]]:
    """The records of standard input, those together that came at about the same time."""
    if sys.stdin.isatty():
        tell(
            "each line becomes a record, until Ctrl-D"
            if not whole
            else "all that you write is one record, until Ctrl-D"
        )
    return iter([[b"".join(_chunks())]]) if whole else lines(received(_chunks()))


def _chunks() -> Iterator[bytes]:
    """What comes on standard input, as it comes."""
    try:
        file = sys.stdin.fileno()
    except OSError:  # a test, or a program that runs this command inside of itself
        while data := sys.stdin.buffer.read(_CHUNK):
            yield data
        return
    while data := os.read(file, _CHUNK):  # not by sys.stdin, whose lock a thread must not hold when Python ends
        yield data


def received(chunks: Iterator[bytes]) -> Iterator[bytes | None]:
    """The chunks, and None whenever none has come for as long as lines may wait. A thread waits for them."""
    arrived: queue.Queue[bytes | Exception | None] = queue.Queue(64)

    def receive() -> None:
        try:
            for chunk in chunks:
                arrived.put(chunk)
            arrived.put(b"")
        except Exception as error:
            arrived.put(error)

    threading.Thread(target=receive, name="penstock-stdin", daemon=True).start()
    deadline = time.monotonic() + WAIT
    while True:
        try:
            chunk = arrived.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            chunk = None
        if isinstance(chunk, Exception):
            raise OptionError(f"standard input cannot be read: {chunk}.")
        if chunk == b"":
            return
        yield chunk
        if time.monotonic() >= deadline:
            if chunk is not None:
                yield None
            deadline = time.monotonic() + WAIT


def lines(chunks: Iterable[bytes | None]) -> Iterator[list[bytes]]:
    """Lines, without their ends, in groups: when there are enough of them, or a None comes. The last line needs no end;
    until the end, what has none waits for it.
    """
    ready: list[bytes] = []
    begun: list[bytes] = []  # pieces of a line without an end
    size = 0
    for chunk in chunks:
        if chunk is not None:
            first, *rest = chunk.split(b"\n")
            begun.append(first)
            if rest:
                ready += [b"".join(begun), *rest[:-1]]
                begun = rest[-1:]
            size += len(chunk)
        if ready and (chunk is None or len(ready) >= MOST_LINES or size >= MOST_BYTES):
            yield ready
            ready, size = [], 0
    if any(begun):
        ready.append(b"".join(begun))
    if ready:
        yield ready
