"""Records as lines: for people, and as JSON. Knows columns and bytes, and where lines are printed; knows no server."""

import base64
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import typer

# What says where a record is, in this order; a format has some of them.
_PLACE = ("stream", "topic", "partition", "shard", "subject", "sequence")
# Bytes that are shown of a value that is no text.
_MOST_BYTES = 30

Lines = Callable[[pa.RecordBatch], list[str]]


def as_text(batch: pa.RecordBatch) -> list[str]:
    r"""A line for each record: time, place and value, with tabs between them. JSON where there is no value, as in a
    table of changes.

    A line end or tab inside of a value is shown as \n or \t, so that a record stays on its line.
    """
    if "value" not in batch.schema.names:
        return as_json(batch)
    columns: list[Iterable[str]] = [_times(batch)] if "timestamp" in batch.schema.names else []
    columns += [map(_place, batch.column(name).to_pylist()) for name in _PLACE if name in batch.schema.names]
    return ["\t".join(fields) for fields in zip(*columns, map(_value, batch.column("value").to_pylist()), strict=True)]


def as_json(batch: pa.RecordBatch) -> list[str]:
    """A JSON object for each record, with all of its columns. Bytes are text where they are UTF-8, else an object with
    the one key `base64`. Times are text in ISO 8601, in UTC.
    """
    columns = {
        name: _times(batch, name) if pa.types.is_timestamp(batch.schema.field(name).type) else column.to_pylist()
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }
    rows = zip(*columns.values(), strict=True)
    return [json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False, default=_plain) for row in rows]


def cell(value: Any, most: int | None = None) -> str:
    """A value in a table; `most`: the letters that it may have. Bytes that are no text, or would move a terminal's
    cursor, are shown as numbers.
    """
    if isinstance(value, bytes):
        text = _decoded(value)
        if text is None:
            text = f"0x{value[:_MOST_BYTES].hex()}{'...' if most is None and len(value) > _MOST_BYTES else ''}"
        return text if most is None or len(text) <= most else f"{text[: most - 3]}..."
    if isinstance(value, list):
        return ", ".join(f"{field['key']}: {cell(field['value'], most)}" for field in value)
    return "" if value is None else str(value)


def _decoded(value: bytes) -> str | None:
    """Bytes as text; None where a terminal should not see them: Avro, Protobuf and the like, or control characters."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() or text.replace("\n", "").replace("\t", "").isprintable() else None


def _value(value: bytes | None) -> str:
    return cell(value).replace("\n", "\\n").replace("\t", "\\t")


def _place(value: Any) -> str:
    text = "" if value is None else str(value)
    return text if text.isprintable() else f"0x{text.encode().hex()}"


def _times(batch: pa.RecordBatch, name: str = "timestamp") -> list[Any]:
    """Times as ISO 8601 has them."""
    texts = pc.replace_substring(batch.column(name).cast(pa.string()), " ", "T")
    found: list[Any] = texts.to_pylist()
    return found


def _plain(value: Any) -> Any:
    """What JSON has no word for."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    return str(value)


def show(lines: list[str]) -> None:
    """Print lines, and see to it that they are there now."""
    if lines:
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()


@contextmanager
def closed_pipe() -> Iterator[None]:
    """Ends the command without a word where nobody reads its output any more, as behind `| head`."""
    try:
        yield
    except BrokenPipeError:
        # Python would flush what is left once more at its end, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
