"""Columns into NATS frames, with no Python statement per row: the reverse of wire.py. Knows no sockets.

Arrow joins the pieces of the frames, for all rows at once. The data buffer of the joined column is what goes to the
socket.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow.buffers import Ints, join, lengths, numbers
from penstock.clients.nats.subjects import problem

_EMPTY = pa.scalar(b"", pa.binary())
# What matches is a legal subject. Other subjects are checked one by one.
_LEGAL = r"^[^.*>\s\x00]+(\.[^.*>\s\x00]+)*$"
_FIRST_LINE = b"NATS/1.0\r\n"


class Fault(NamedTuple):
    """A row that cannot be sent, and why."""

    row: int
    why: str


def frames(subject: pa.Array, reply: pa.Array | None, block: pa.Array | None, value: pa.Array) -> pa.Array:
    """A PUB frame per row, or HPUB where `block` has header lines. All columns are binary, without nulls."""
    sizes = lengths(value)
    reply_to: list[pa.Array | bytes] = [b" ", reply] if reply is not None else []
    if block is None:
        return join(b"PUB ", subject, *reply_to, b" ", numbers(sizes), b"\r\n", value, b"\r\n")
    head = lengths(block) + len(_FIRST_LINE) + 2
    line_end: list[pa.Array | bytes] = [b" ", numbers(head), b" ", numbers(head + sizes), b"\r\n" + _FIRST_LINE]
    return join(b"HPUB ", subject, *reply_to, *line_end, block, b"\r\n", value, b"\r\n")


def size_of(block: pa.Array | None, value: pa.Array) -> Ints:
    """The bytes of each row that the server counts against max_payload."""
    sizes = lengths(value)
    return sizes if block is None else sizes + lengths(block) + len(_FIRST_LINE) + 2


def _without_hidden(column: pa.Array) -> pa.Array:
    """The same lists, with no values under a null one."""
    return column.take(pa.array(np.arange(len(column)))) if column.null_count else column


def header_lines(column: pa.Array, without: str = "") -> pa.Array:
    """The `headers` of each row as header lines; empty where there are none. Headers whose key matches the regular
    expression `without` are left out.
    """
    column = _without_hidden(column)
    structs, rows = column.flatten(), np.asarray(pc.list_parent_indices(column))
    keys, values = structs.field(0).cast(pa.binary()), pc.fill_null(structs.field(1).cast(pa.binary()), b"")
    if without and len(keys):
        keep = pc.invert(pc.match_substring_regex(keys, without, ignore_case=True))
        keys, values, rows = keys.filter(keep), values.filter(keep), rows[np.asarray(keep)]
    lines = join(keys, b": ", values, b"\r\n")
    at = np.zeros(len(column) + 1, np.int32)
    np.cumsum(np.bincount(rows, minlength=len(column)), out=at[1:])
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(at), lines), _EMPTY)


def bad_header(column: pa.Array) -> Fault | None:
    """The first row with a header that would break the frame."""
    column = _without_hidden(column)
    structs = column.flatten()
    if not len(structs):
        return None
    key, value = structs.field(0).cast(pa.binary()), structs.field(1).cast(pa.binary())
    legal = pc.fill_null(pc.match_substring_regex(key, r"^[!-9;-~]+$"), False)
    broken = pc.or_(pc.invert(legal), pc.fill_null(pc.match_substring_regex(value, r"[\r\n]"), False))
    at = pc.index(broken, True).as_py()
    if at < 0:
        return None
    row, name = pc.list_parent_indices(column)[at].as_py(), key[at].as_py()
    if name is None or not legal[at].as_py():
        return Fault(row, f"has a header named {name!r}, which is no name: it must be printable, without ':' or space")
    return Fault(row, f"has a line break in the header {name.decode()!r}")


def bad_body(block: pa.Array | None, value: pa.Array, limit: int) -> Fault | None:
    """The first row without a value, or larger than `limit`: for such a row the server would close the connection."""
    if value.null_count:
        why = "has no value (null). Write coalesce(value, '') for an empty body"
        return Fault(pc.index(pc.is_null(value), True).as_py(), why)
    sizes = size_of(block, value)
    if not len(sizes) or sizes.max() <= limit:
        return None
    row = int(np.argmax(sizes > limit))
    return Fault(row, f"has {int(sizes[row]):,} bytes, headers included, and the server takes {limit:,} (max_payload)")


def longest_line(subject: pa.Array) -> Fault:
    """The row with the longest subject, after the server refused a control line: it does not tell its limit before."""
    sizes = lengths(subject)
    row = int(np.argmax(sizes))
    return Fault(
        row,
        f"has a subject of {int(sizes[row]):,} bytes, which the server does not take: with the reply and two sizes it "
        "must fit into max_control_line, 4,096 bytes by default",
    )


def bad_value(name: str, column: pa.Array) -> Fault | None:
    """The first row whose text in column `name` cannot be the value of a header. A null is no text."""
    inner, outer = r"[^\x00-\x1f\x7f]", r"[^\x00-\x20\x7f]"
    legal = pc.fill_null(pc.match_substring_regex(column, f"^{outer}({inner}*{outer})?$"), True)
    at = pc.index(legal, False).as_py()
    if at < 0:
        return None
    text = column[at].as_py()[:60]
    return Fault(at, f"has {text!r} in '{name}', which is empty, has a space around it, or a control character in it")


def bad_subject(column: pa.Array, missing: Callable[[int], str] = lambda _: "has no subject (null)") -> Fault | None:
    """The first row with a null or illegal subject. `missing` is the reason for a null in a row."""
    if column.null_count:
        row = pc.index(pc.is_null(column), True).as_py()
        return Fault(row, missing(row))
    legal = pc.match_substring_regex(column, _LEGAL)
    if pc.all(legal).as_py():
        return None
    for row in np.flatnonzero(~np.asarray(legal)):
        text = column[int(row)].as_py()
        text = text.decode(errors="replace") if isinstance(text, bytes) else text
        why = problem(text, wildcards=False)
        if why:
            return Fault(int(row), f"has the subject '{text[:80]}', which {why}")
    return None
