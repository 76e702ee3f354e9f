"""`penstock streams`: which streams there are, and how large they are. Knows typer and rich, and whom to ask; how a
server is asked is in its client.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from penstock.cli.formats import format_names, names_of, parsed, plain
from penstock.cli.lines import closed_pipe, show
from penstock.cli.pipelines import console
from penstock.cli.sentences import sentences
from penstock.cli.tail import told_on_stderr
from penstock.clients.iggy.options import IggyOptions
from penstock.clients.kinesis.options import KinesisOptions
from penstock.clients.nats.options import NatsOptions
from penstock.clients.s2.options import S2Options
from penstock.errors import OptionError
from penstock.kit.retry import at_once
from penstock.options import Options, alias, shown, spellings

Row = Mapping[str, Any]


def streams(
    name: Annotated[str, typer.Argument(metavar="FORMAT", autocompletion=format_names)],
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="OPTION=VALUE...", autocompletion=lambda ctx, incomplete: _completed(ctx, incomplete)),
    ] = None,
    in_json: Annotated[bool, typer.Option("--json", help="A JSON object a line.")] = False,
) -> None:
    """List the streams of a server, and how large they are: penstock streams jetstream servers=nats://127.0.0.1:4222."""
    with sentences(), closed_pipe(), told_on_stderr():
        rows = _rows(name, parsed(options or ()))
        if in_json:
            show([json.dumps(row, ensure_ascii=False) for row in rows])
            return
        if not rows:
            console().print("there are no streams")
            return
        table = Table(*rows[0])
        for row in rows:
            table.add_row(*(Text(_cell(value)) for value in row.values()))
        console().print(table)


def _rows(name: str, raw: dict[str, str]) -> Sequence[Row]:
    format = plain(name)
    if name == "nats":
        raise OptionError(
            "Core NATS has no streams: it keeps nothing. `penstock streams jetstream` lists what JetStream keeps on "
            "that server, and `penstock tail nats subjects=... -f` shows what is published."
        )
    model, ask = _model(name), _LISTINGS[name][1]
    for key in raw:
        if (why := _elsewhere(format, model).get(key.lower())) is not None:
            raise OptionError(why)
    return ask(model.parse(name, raw | _UNUSED.get(name, {})))


def _model(name: str) -> type[Options]:
    """The options of the connection."""
    model = _LISTINGS[name][0]
    if model is None:
        plain(name)  # without Spark, before anything of it is imported
        from penstock.connectors.journal.options import FolderOptions

        return FolderOptions
    return model


def _elsewhere(format: Any, model: type[Options]) -> dict[str, str]:
    """Errors for options that say how a stream is read or written, by their names."""
    unused = _UNUSED.get(format.format, {})
    known = {spelt for spelt, field in spellings(model).items() if alias(field) not in unused}
    return {
        spelt: f"option '{shown(other, field)}' says how {format.format} is read or written, and this lists all "
        "streams. Leave it out."
        for other in (format.options_type, format.sink_options_type)
        for spelt, field in spellings(other).items()
        if spelt not in known
    }


def _completed(ctx: Any, incomplete: str) -> list[str]:
    name = ctx.params.get("name")
    if name not in _LISTINGS:
        return []
    unused = {f"{each}=" for each in _UNUSED.get(name, {})}
    names = names_of(_model(name), ctx.params.get("options") or (), incomplete)
    return [each for each in names if each not in unused]


def _jetstream(options: Any) -> list[Row]:
    from penstock.clients.jetstream.calls import Calls
    from penstock.clients.jetstream.listing import Listed, listing
    from penstock.clients.nats.pool import connect, keep

    def ask() -> list[Listed]:
        connection = connect(options)
        found = listing(Calls(connection, options))
        keep(connection)
        return found

    return [
        {
            "stream": each.name,
            "subjects": list(each.subjects),
            "messages": each.messages,
            "bytes": each.size,
            "first": each.first,
            "last": each.last,
            "lastTime": _moment(each.last_time),
            "consumers": each.consumers,
        }
        for each in at_once(ask)
    ]


def _s2(options: Any) -> list[Row]:
    from penstock.clients.s2.calls import Calls
    from penstock.clients.s2.reach import ApiError
    from penstock.errors import ConnectError

    calls = Calls(options)
    try:
        created = at_once(lambda: calls.streams(""))
        tails = at_once(lambda: calls.tails(list(created)))
    except ApiError as error:
        raise ConnectError(f"S2 refuses: {error}.") from None
    finally:
        calls.close()
    return [{"stream": name, "next": tails[name], "created": created[name]} for name in sorted(tails)]


def _iggy(options: Any) -> list[Row]:
    from penstock.clients.iggy.client import Client

    client = Client(options)
    client.reach()
    return [
        {
            "stream": stream,
            "topic": topic.name,
            "partitions": topic.partitions,
            "messages": topic.messages,
            "bytes": topic.size,
        }
        for stream in sorted(client.names())
        for topic in sorted(client.topics(stream))
    ]


def _kinesis(options: Any) -> list[Row]:
    from penstock.clients.kinesis.calls import Calls
    from penstock.clients.kinesis.listing import listing

    return [
        {"stream": each.name, "shards": each.shards, "status": each.status, "retentionHours": each.retention}
        for each in listing(Calls(options))
    ]


def _journal(options: Any) -> list[Row]:
    journal = plain("journal")
    source = journal.open_source(journal.parse({"directory": str(options.directory)}))
    return [
        {
            "stream": name,
            "rows": bound.next - bound.first,
            "bytes": round(bound.row_bytes * bound.next),
            "first": bound.first,
            "next": bound.next,
        }
        for name, bound in source.bounds().items()
    ]


# What to list by: the options of the connection, and whom to ask with them.
_LISTINGS: dict[str, tuple[type[Options] | None, Callable[[Any], Sequence[Row]]]] = {
    "jetstream": (NatsOptions, _jetstream),
    "s2": (S2Options, _s2),
    "iggy": (IggyOptions, _iggy),
    "kinesis": (KinesisOptions, _kinesis),
    "journal": (None, _journal),  # its options are loaded with the format
}
# Options that a connection must have, and that do not matter to a list.
_UNUSED = {"kinesis": {"stream": "unused"}}


def _moment(micros: int | None) -> str | None:
    if micros is None:
        return None
    return f"{datetime.fromtimestamp(micros / 1e6, UTC):%Y-%m-%dT%H:%M:%S}Z"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(value)
    return f"{value:,}" if isinstance(value, int) else str(value)
