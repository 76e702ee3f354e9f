import re
import sys
from functools import reduce
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.arrow.buffers import lengths
from penstock.arrow.types import HEADERS
from penstock.clients.jetstream.api import LEDGER, StreamInfo
from penstock.clients.jetstream.calls import Calls
from penstock.clients.jetstream.publish import Chunk
from penstock.clients.nats.frames import frames, size_of
from penstock.clients.nats.options import NatsOptions
from penstock.clients.nats.subjects import as_regex
from penstock.connectors.jetstream import rows
from penstock.connectors.jetstream.guard import ROWS, Guard, _rows
from penstock.connectors.jetstream.ledger import Claim
from penstock.connectors.jetstream.options import JetStreamSinkOptions
from penstock.connectors.jetstream.targets import Targets
from penstock.errors import OptionError
from penstock.kit import templates
from penstock.kit.contract import Origin, Receipt

ORIGIN = Origin("q-1", 3, 2)
Headers = list[tuple[str, bytes | None]] | None
Row = dict[str, Any]


def table(kinds: dict[str, pa.DataType], given_: list[Row], before: int = 0) -> pa.RecordBatch:
    """The rows as a batch; with `before`, as a piece of a longer one."""
    around = [given_[-1]] * before if given_ else []
    long = [*around, *given_, *around]
    batch = pa.RecordBatch.from_arrays(
        [pa.array([row[name] for row in long], kind) for name, kind in kinds.items()], list(kinds)
    )
    return batch.slice(len(around), len(given_))


# Templates

TEMPLATE_KINDS = {"a": pa.string(), "b": pa.int64(), "c d": pa.bool_(), "é": pa.binary()}
TEMPLATE_ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "a": st.none() | st.text(max_size=5) | st.sampled_from(["{b}", "\\1", ""]),
            "b": st.none() | st.integers(-(2**63), 2**63 - 1),
            "c d": st.none() | st.booleans(),
            "é": st.none() | st.text(max_size=3).map(str.encode),
        }
    ),
    max_size=6,
)
TEMPLATES = st.lists(
    st.sampled_from(["{a}", "{b}", "{c d}", "{é}", "orders", ".", "é", "\\1", "%s", "$"]), max_size=6
).map("".join)


def as_text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode()
    return str(value).lower() if isinstance(value, bool) else str(value)


def slow_fill(template: str, row: Row) -> str | None:
    names = re.findall(r"\{([^{}]*)\}", template)
    if any(row[name] is None for name in names):
        return None
    return re.sub(r"\{([^{}]*)\}", lambda match: as_text(row[match[1]]), template)


@given(TEMPLATES, TEMPLATE_ROWS, st.integers(0, 2))
@example("", [dict.fromkeys(TEMPLATE_KINDS)], 0)
@example("{a}", [], 0)
def test_a_template_is_filled_as_row_by_row(template: str, given_: list[Row], before: int) -> None:
    batch = table(TEMPLATE_KINDS, given_, before)
    templates.check("subject", template, batch.schema.names)
    filled = templates.fill(template, batch)
    assert filled.type == pa.string()
    assert filled.to_pylist() == [slow_fill(template, row) for row in given_]


@pytest.mark.parametrize(
    ("template", "names"),
    [
        ("", []),
        ("a.b", []),
        ("a.{x}", ["x"]),
        ("{x}.{y z}.{x}", ["x", "y z", "x"]),
        ("{x}{y}", ["x", "y"]),
        ("{}", [""]),
    ],
)
def test_the_columns_of_a_template_are_those_in_braces(template: str, names: list[str]) -> None:
    assert templates.columns(template) == names


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("a.{x", "braces must come in pairs"),
        ("a.x}", "braces must come in pairs"),
        ("}{", "braces must come in pairs"),
        ("{{x}}", "braces must come in pairs"),
        ("{x}}", "braces must come in pairs"),
        ("a.{z}", "but there is no column 'z'. There are: x, y."),
        ("{x}.{X}", "but there is no column 'X'. There are: x, y."),
        ("{ x }", "but there is no column ' x '. There are: x, y."),
        ("a.{}", "but there is no column ''. There are: x, y."),
    ],
)
def test_a_template_that_cannot_be_filled_is_refused(template: str, why: str) -> None:
    with pytest.raises(OptionError, match=re.escape(f"option 'subject' is '{template}'")) as error:
        templates.check("subject", template, ["x", "y"])
    assert why in str(error.value)


@pytest.mark.parametrize(
    ("template", "own", "expected"),
    [
        (None, ["s", None], ["s", None]),
        ("t.{x}", None, ["t.1", None]),
        ("t.{x}", ["s", None], ["s", None]),
        ("t.{x}", [None, "s"], ["t.1", "s"]),
        ("t", [None, "s"], ["t", "s"]),
        ("t.{subject}", ["s", None], ["t.s", None]),
    ],
)
def test_a_subject_is_the_rows_own_or_the_options(
    template: str | None, own: list[str | None] | None, expected: list[str | None]
) -> None:
    columns = {"x": pa.array(["1", None])} | ({} if own is None else {"subject": pa.array(own, pa.string())})
    assert templates.names(template, pa.RecordBatch.from_pydict(columns)).to_pylist() == expected


# Columns that a sink takes

TEXT_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.string())]))


@pytest.mark.parametrize(
    ("subject", "columns"),
    [
        (None, {"value": pa.binary(), "subject": pa.string()}),
        ("a", {"value": pa.string()}),
        ("a", {"value": pa.string(), "subject": pa.string()}),
        ("a.{value}", {"value": pa.string()}),
        ("a.{x}", {"value": pa.binary(), "x": pa.float64()}),
        ("a", {"value": pa.binary(), "headers": HEADERS}),
        ("a", {"value": pa.binary(), "headers": TEXT_HEADERS}),
        ("a", {"value": pa.binary(), "id": pa.string(), "ttl": pa.string()}),
        ("a", {"value": pa.binary(), "ttl": pa.int32(), "expectedLastSubjectSequence": pa.int64()}),
        ("a.{stream}.{sequence}", {"value": pa.binary(), "stream": pa.string(), "sequence": pa.int64()}),
    ],
)
def test_columns_that_can_be_written_are_accepted(subject: str | None, columns: dict[str, pa.DataType]) -> None:
    rows.accept(JetStreamSinkOptions(subject=subject), pa.schema(list(columns.items())))


@pytest.mark.parametrize(
    ("subject", "columns", "why"),
    [
        ("a", {"x": pa.string()}, "no column 'value' to write. There are: x."),
        (
            "a",
            {"Value": pa.string()},
            "no column 'value' to write. There are: Value. Names of columns are told apart by case: rename it with "
            "withColumnRenamed('Value', 'value'), or in SQL `Value` AS `value`.",
        ),
        (
            None,
            {"value": pa.binary(), "Subject": pa.string()},
            "rename it with withColumnRenamed('Subject', 'subject')",
        ),
        (
            "a.{X}",
            {"value": pa.binary(), "x": pa.string()},
            "told apart by case: rename it with withColumnRenamed('x', 'X')",
        ),
        ("a", {"value": pa.binary(), "TTL": pa.string()}, "rename it with withColumnRenamed('TTL', 'ttl')"),
        (None, {"value": pa.binary()}, "rows have no subject: set the option 'subject', or add a column 'subject'."),
        ("a.{x}", {"value": pa.binary()}, "there is no column 'x'. There are: value."),
        ("a", {"value": pa.binary(), "x": pa.string()}, "jetstream cannot write the column 'x'"),
        ("a.{x}", {"value": pa.binary(), "x": pa.string(), "y": pa.string()}, "cannot write the column 'y'"),
        (
            "a",
            {"value": pa.binary(), "timestamp": pa.timestamp("us"), "stream": pa.string(), "x": pa.string()},
            "jetstream cannot write the columns 'timestamp', 'stream', 'x': it writes value, subject, headers, id, "
            "ttl, expectedLastSubjectSequence. Leave them out with drop('timestamp', 'stream', 'x'), or put",
        ),
        (
            "a",
            {"value": pa.int64(), "id": pa.int64(), "x": pa.string()},
            "drop('x'), or put what you need of it into `value` or `headers`. Column 'value' must be STRING or BINARY, "
            "but is int64. Cast it, in SQL or selectExpr: string(`value`) AS `value`. Column 'id' must be STRING, but "
            "is int64. Cast it, in SQL or selectExpr: string(`id`) AS `id`.",
        ),
        ("a", {"value": pa.int64()}, "column 'value' must be STRING or BINARY, but is int64. Cast it, in SQL"),
        (None, {"value": pa.binary(), "subject": pa.binary()}, "column 'subject' must be STRING, but is binary"),
        ("a", {"value": pa.binary(), "id": pa.int64()}, "column 'id' must be STRING, but is int64"),
        ("a", {"value": pa.binary(), "ttl": pa.float64()}, "column 'ttl' must be STRING or BIGINT, but is double"),
        ("a", {"value": pa.binary(), "headers": pa.string()}, "must be ARRAY<STRUCT<key STRING, value BINARY>>"),
        ("a", {"value": pa.binary(), "headers": pa.list_(pa.string())}, "must be ARRAY<STRUCT<key STRING"),
        ("a", {"value": pa.binary(), "headers": pa.map_(pa.string(), pa.binary())}, "must be ARRAY<STRUCT<key STRING"),
        (
            "a",
            {"value": pa.binary(), "expectedLastSubjectSequence": pa.string()},
            "column 'expectedLastSubjectSequence' must be BIGINT, but is string",
        ),
    ],
)
def test_columns_that_cannot_be_written_are_refused(
    subject: str | None, columns: dict[str, pa.DataType], why: str
) -> None:
    with pytest.raises(OptionError) as error:
        rows.accept(JetStreamSinkOptions(subject=subject), pa.schema(list(columns.items())))
    assert why in str(error.value)


# Rows as they are published

NAMES = st.sampled_from(["a", "eu", "é", "x-1", "b*"])
ONE_LINE = st.text(
    st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_characters="\x7f"), min_size=1, max_size=6
)
VALUES = st.binary(max_size=20) | st.sampled_from([b"", b"\r\n", b"\xff"])
KEYS = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=":"), min_size=1, max_size=6)
NATS_KEYS = st.sampled_from(["Nats-Msg-Id", "nats-expected-stream", "Nats-Batch-Commit", "Nats-TTL", "Nats-Msg-Ids"])
LINES = st.lists(st.tuples(KEYS | NATS_KEYS, st.none() | st.sampled_from([b"", b"v", b" v ", b"\xff:"])), max_size=3)
FULL_ROW = st.fixed_dictionaries(
    {
        "value": VALUES,
        "x": NAMES,
        "subject": st.none() | st.lists(NAMES, min_size=1, max_size=3).map(".".join),
        "headers": st.none() | LINES,
        "id": st.none() | ONE_LINE,
        "ttl": st.none() | st.sampled_from(["1h", "never"]),
        "expectedLastSubjectSequence": st.none() | st.integers(0, 2**63 - 1),
    }
)
KINDS: dict[str, pa.DataType] = {
    "value": pa.binary(),
    "x": pa.string(),
    "subject": pa.string(),
    "headers": HEADERS,
    "id": pa.string(),
    "ttl": pa.string(),
    "expectedLastSubjectSequence": pa.int64(),
}
OPTIONAL = ["subject", "headers", "id", "ttl", "expectedLastSubjectSequence"]


def slow_id(row: Row, number: int, delivery: str) -> str | None:
    own: str | None = row.get("id")
    return own if own is not None or delivery == "at_least_once" else f"q-1/3/2/{number}"


def commands(key: str) -> bool:
    key = key.lower()
    return key in ("nats-msg-id", "nats-ttl") or key.startswith(("nats-expected-", "nats-batch-"))


def slow_block(row: Row, number: int, delivery: str) -> bytes:
    own = {
        "Nats-Msg-Id": slow_id(row, number, delivery),
        "Nats-TTL": row.get("ttl"),
        "Nats-Expected-Last-Subject-Sequence": row.get("expectedLastSubjectSequence"),
    }
    lines = [f"{name}: {value}\r\n".encode() for name, value in own.items() if value is not None]
    lines += [
        key.encode() + b": " + (value or b"") + b"\r\n" for key, value in row.get("headers") or [] if not commands(key)
    ]
    return b"".join(lines)


@given(
    st.lists(FULL_ROW, max_size=6),
    st.sets(st.sampled_from(OPTIONAL)),
    st.sampled_from(["exactly_once", "at_least_once"]),
    st.integers(0, 2**40),
    st.integers(0, 2),
)
def test_a_chunk_holds_what_was_made_row_by_row(
    given_: list[Row], also: set[str], delivery: str, first: int, before: int
) -> None:
    kinds = {name: kind for name, kind in KINDS.items() if name in {"value", "x"} | also}
    given_ = [{name: row[name] for name in kinds} for row in given_]
    options = JetStreamSinkOptions(subject="t.{x}", delivery=delivery)
    batch = table(kinds, given_, before)
    rows.accept(options, batch.schema)
    made = rows.chunk(options, ORIGIN, batch, first)
    numbered = list(enumerate(given_, start=first))
    assert len(made) == len(given_)
    assert made.number.tolist() == [number for number, _ in numbered]
    assert made.subject.to_pylist() == [(row.get("subject") or f"t.{row['x']}").encode() for row in given_]
    assert made.value.to_pylist() == [row["value"] for row in given_]
    blocks = [slow_block(row, number, delivery) for number, row in numbered]
    assert (blocks if made.block is None else made.block.to_pylist()) == blocks
    assert made.block is not None or not any(blocks)
    ids = [slow_id(row, number, delivery) for number, row in numbered]
    assert (made.ids is None) == (delivery == "at_least_once" and "id" not in kinds)
    if made.ids is not None:
        assert made.ids.to_pylist() == [None if own is None else own.encode() for own in ids]
    assert not made.stored.any()
    assert made.conditional == ("expectedLastSubjectSequence" in kinds)
    for column in (made.subject, made.block, made.value):
        assert column is None or (column.type == pa.binary() and not column.null_count)
    assert len(frames(made.subject, None, made.block, made.value)) == len(given_)


@pytest.mark.parametrize(
    ("key", "kept"),
    [
        ("Nats-Msg-Id", False),
        ("nats-msg-id", False),
        ("Nats-Expected-Stream", False),
        ("Nats-Expected-Last-Sequence", False),
        ("NATS-BATCH-ID", False),
        ("Nats-Required-Api-Level", False),
        ("Nats-Msg-Identity", True),
        ("X-Nats-Msg-Id", True),
        ("Nats-Rollup", False),
        ("nats-ttl", False),
        ("Nats-Schedule", False),
        ("Nats-Schedule-Target", False),
        ("Nats-Incr", False),
        ("Nats-Increment", True),
        ("Nats-Marker-Reason", True),
        ("traceparent", True),
    ],
)
def test_headers_that_command_are_left_out(key: str, kept: bool) -> None:
    options = JetStreamSinkOptions(subject="a", delivery="at_least_once")
    batch = table({"value": pa.string(), "headers": HEADERS}, [{"value": "", "headers": [(key, b"1"), ("k", b"2")]}])
    block = rows.chunk(options, ORIGIN, batch, 0).block
    assert block is not None
    assert block.to_pylist() == [(f"{key}: 1\r\n" if kept else "").encode() + b"k: 2\r\n"]


def test_rows_with_nothing_to_say_have_no_headers() -> None:
    options = JetStreamSinkOptions(subject="a", delivery="at_least_once")
    batch = table({"value": pa.string(), "headers": HEADERS}, [{"value": "1", "headers": None}] * 2)
    made = rows.chunk(options, ORIGIN, batch, 0)
    assert made.block is None
    assert made.value.to_pylist() == [b"1", b"1"]


def test_a_time_to_live_may_be_a_number() -> None:
    options = JetStreamSinkOptions(subject="a", delivery="at_least_once")
    for kind in (pa.int32(), pa.int64()):
        batch = table({"value": pa.string(), "ttl": kind}, [{"value": "", "ttl": 60}, {"value": "", "ttl": None}])
        block = rows.chunk(options, ORIGIN, batch, 0).block
        assert block is not None
        assert block.to_pylist() == [b"Nats-TTL: 60\r\n", b""]


@pytest.mark.parametrize(
    ("column", "kind", "bad", "why"),
    [
        ("value", pa.string(), None, "has no value (null). Write coalesce(value, '') for an empty body."),
        (
            "x",
            pa.string(),
            None,
            "has no subject (null): the column 'x' of the option 'subject' ('t.{x}') is null there. Leave such rows "
            "out, or fill the column: coalesce(`x`, 'none') AS `x`.",
        ),
        ("x", pa.string(), "", "has the subject 't.', which has an empty token."),
        ("x", pa.string(), "a b", "has the subject 't.a b', which has a space or control character."),
        ("x", pa.string(), "*", "has the subject 't.*', which has a wildcard."),
        ("x", pa.string(), "a\r\nPUB b 0", "which has a space or control character."),
        ("headers", HEADERS, [("a b", b"")], "has a header named b'a b', which is no name"),
        ("headers", HEADERS, [("a", b"\n")], "has a line break in the header 'a'."),
        ("id", pa.string(), "good", None),
    ],
)
def test_a_row_that_cannot_be_sent_is_refused_by_its_number(
    column: str, kind: pa.DataType, bad: object, why: str | None
) -> None:
    fine: Row = {"value": "v", "x": "eu", "headers": [("Nats-Msg-Id", b"kept")], "id": None}
    kinds = KINDS | {"value": pa.string(), column: kind}
    batch = table({name: kinds[name] for name in fine}, [fine, {**fine, column: bad}, fine], before=1)
    options = JetStreamSinkOptions(subject="t.{x}")
    if why is None:
        assert len(rows.chunk(options, ORIGIN, batch, 40)) == 3
        return
    with pytest.raises(OptionError, match=r"^row 41 of partition 2 of batch 3 has ") as error:
        rows.chunk(options, ORIGIN, batch, 40)
    assert why in str(error.value)


def test_a_row_without_a_subject_of_its_own_or_of_the_option_says_what_to_set() -> None:
    kinds = {"value": pa.string(), "subject": pa.string()}
    batch = table(kinds, [{"value": "v", "subject": "a"}, {"value": "v", "subject": None}])
    with pytest.raises(OptionError, match=r"^row 1 .* has no subject \(null\)\. Leave .* set the option 'subject'"):
        rows.chunk(JetStreamSinkOptions(), ORIGIN, batch, 0)


def test_several_columns_of_a_template_that_are_null_are_all_named() -> None:
    kinds = {"value": pa.string(), "x": pa.string(), "y": pa.int64(), "z": pa.string()}
    batch = table(kinds, [{"value": "v", "x": None, "y": None, "z": "c"}])
    with pytest.raises(OptionError, match=r"the columns 'x', 'y' of the option 'subject' .* are null there"):
        rows.chunk(JetStreamSinkOptions(subject="{x}.{y}.{z}"), ORIGIN, batch, 0)


@pytest.mark.parametrize("column", ["id", "ttl"])
def test_a_line_break_in_an_id_or_a_time_to_live_adds_no_header(column: str) -> None:
    row = {"value": b"v", column: "1s\r\nNats-Rollup: all"}
    batch = table({"value": pa.binary(), column: pa.string()}, [row])
    with pytest.raises(OptionError, match=r"^row 0 of "):
        rows.chunk(JetStreamSinkOptions(subject="a"), ORIGIN, batch, 0)


def test_an_empty_id_is_refused_or_replaced_where_rows_must_not_be_there_twice() -> None:
    batch = table({"value": pa.binary(), "id": pa.string()}, [{"value": b"v", "id": ""}])
    try:
        made = rows.chunk(JetStreamSinkOptions(subject="a"), ORIGIN, batch, 0)
    except OptionError:
        return
    assert made.ids is not None
    assert made.ids.to_pylist() == [b"q-1/3/2/0"]


def test_a_column_that_is_no_text_is_refused_in_a_template() -> None:
    batch = pa.RecordBatch.from_pydict({"value": ["v"], "x": pa.array([[1]])})
    options = JetStreamSinkOptions(subject="a.{x}")
    with pytest.raises(OptionError):  # but it is an ArrowNotImplementedError from chunk(), in the task
        rows.accept(options, batch.schema)


# Rows that are too large

SIZED = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6)


def sized(sizes: list[tuple[int, int]], *, with_block: bool = True, first: int = 7) -> Chunk:
    count = len(sizes)
    block = pa.array([b"b" * block for block, _ in sizes], pa.binary()) if with_block else None
    value = pa.array([b"v" * value for _, value in sizes], pa.binary())
    subject = pa.array([b"s"] * count, pa.binary())
    return Chunk(np.arange(first, first + count), subject, block, value, np.zeros(count, bool))


@given(SIZED, st.booleans(), st.integers(0, 60))
def test_the_first_row_that_is_too_large_is_the_one_found_row_by_row(
    sizes: list[tuple[int, int]], with_block: bool, limit: int
) -> None:
    error = rows.too_large(sized(sizes, with_block=with_block), ORIGIN, limit)
    totals = [value + (len(b"NATS/1.0\r\n\r\n") + block if with_block else 0) for block, value in sizes]
    large = [(i, total) for i, total in enumerate(totals, start=7) if total > limit]
    if not large:
        assert error is None
    else:
        i, total = large[0]
        assert str(error) == (
            f"row {i} of partition 2 of batch 3 has {total} bytes, headers included, and the server takes {limit} "
            "(max_payload)."
        )


def test_a_row_that_is_too_large_is_named_rightly_among_those_left() -> None:
    made = sized([(0, 0), (0, 0), (0, 0), (0, 99)])
    made.mark(np.array([8, 9]))
    error = rows.too_large(made.rest(), ORIGIN, 50)
    assert str(error).startswith("row 10 of ")


# Chunks

NUMBERS = st.lists(st.integers(0, 40), unique=True, max_size=10).map(sorted)


def numbered(numbers: list[int], *, stored: set[int] = frozenset(), optional: bool = True) -> Chunk:  # type: ignore[assignment]
    def column(letter: str) -> pa.Array:
        return pa.array([b"junk", *(f"{letter}{n}".encode() for n in numbers)], pa.binary())[1:]

    return Chunk(
        np.array(numbers, np.int64),
        column("s"),
        column("b") if optional else None,
        column("v"),
        np.array([n in stored for n in numbers], bool),
        column("i") if optional else None,
        conditional=optional,
    )


def assert_same(made: Chunk, expected: Chunk) -> None:
    assert made.number.tolist() == expected.number.tolist()
    assert made.stored.tolist() == expected.stored.tolist()
    assert made.conditional == expected.conditional
    for name in ("subject", "block", "value", "ids"):
        one, other = getattr(made, name), getattr(expected, name)
        assert (None if one is None else one.to_pylist()) == (None if other is None else other.to_pylist()), name


@given(NUMBERS, st.sets(st.integers(0, 40)), st.booleans())
def test_the_rest_of_a_chunk_is_what_is_not_stored(numbers: list[int], stored: set[int], optional: bool) -> None:
    chunk = numbered(numbers, stored=stored, optional=optional)
    left = [n for n in numbers if n not in stored]
    assert_same(chunk.rest(), numbered(left, optional=optional))
    assert_same(chunk.rest().rest(), chunk.rest())
    assert_same(chunk, numbered(numbers, stored=stored, optional=optional))


@given(NUMBERS, st.sets(st.integers(0, 40)), st.booleans(), st.integers(0, 12), st.integers(0, 12))
def test_a_part_of_a_chunk_is_a_slice_with_marks_of_its_own(
    numbers: list[int], stored: set[int], optional: bool, low: int, high: int
) -> None:
    chunk = numbered(numbers, stored=stored, optional=optional)
    low, high = min(low, high), max(low, high)
    part = chunk.part(low, high)
    assert_same(part, numbered(numbers[low:high], stored=stored, optional=optional))
    part.mark(part.number)
    assert part.stored.all()
    assert_same(chunk, numbered(numbers, stored=stored, optional=optional))


@given(NUMBERS, st.sets(st.integers(0, 40)), st.lists(st.integers(0, 45), max_size=8))
def test_rows_are_marked_as_far_as_they_are_there(numbers: list[int], stored: set[int], marks: list[int]) -> None:
    chunk = numbered(numbers, stored=stored)
    chunk.mark(np.array(marks, np.int64))
    assert_same(chunk, numbered(numbers, stored=stored | set(marks)))


@given(NUMBERS, st.lists(st.sets(st.integers(0, 40)), max_size=4))
def test_a_chunk_is_written_off_bit_by_bit(numbers: list[int], answers: list[set[int]]) -> None:
    chunk = numbered(numbers)
    for rows_ in answers:
        chunk.mark(np.array(sorted(rows_), np.int64))
        chunk = chunk.rest()
    assert_same(chunk, numbered([n for n in numbers if not any(n in rows_ for rows_ in answers)]))


@given(NUMBERS, st.integers(1, 40))
def test_a_chunk_is_cut_by_bytes(numbers: list[int], largest: int) -> None:
    chunk = numbered(numbers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "LARGEST", largest)
        parts = list(rows.parts(chunk))
    assert [n for part in parts for n in part.number.tolist()] == numbers
    for part in parts:
        assert_same(part, numbered(part.number.tolist()))
        sizes = size_of(part.block, part.value) + lengths(part.subject)
        assert sizes[1:].sum() < largest


# What is there already

FOUND = st.lists(
    st.tuples(
        VALUES,
        st.none()
        | st.lists(
            st.tuples(
                st.sampled_from(["Nats-Msg-Id", "Nats-Msg-Id", "nats-msg-id", "Nats-Msg-Id2", "k"]),
                st.sampled_from([b"1", b"2", b"", b"\xff"]),
            ),
            max_size=4,
        ),
    ),
    max_size=8,
)


def stream_info(**config: Any) -> StreamInfo:
    state = {
        "first_seq": 1,
        "last_seq": 5,
        "messages": 5,
        "bytes": 9,
        "first_ts": "2026-11-15T12:00:00Z",
        "last_ts": "2026-11-15T12:00:00Z",
    }
    named = {"name": "S", "subjects": ["s.>"]} | config
    return StreamInfo.of({"config": named, "state": state, "created": "2026-11-15T12:00:00Z"})


@given(FOUND, st.integers(0, 2))
@example([], 0)
@example([(b"v", None)], 0)
def test_the_rows_of_a_stream_are_those_found_one_by_one(
    found: list[tuple[bytes, list[tuple[str, bytes]] | None]], before: int
) -> None:
    kinds = {"value": pa.binary(), "headers": HEADERS, "subject": pa.string()}
    given_ = [{"value": value, "headers": headers, "subject": f"s.{i}"} for i, (value, headers) in enumerate(found)]
    made = _rows(table(kinds, given_, before), stream_info())
    assert made.schema == ROWS
    expected = [
        {
            "id": next(v for k, v in headers if k == "Nats-Msg-Id"),
            "subject": b"s.%d" % i,
            "value": value,
            "headers": b"".join(b"%s: %s\r\n" % (k.encode(), v) for k, v in headers if k.lower() != "nats-msg-id"),
            "stream": "S",
        }
        for i, (value, headers) in enumerate(found)
        if headers and any(k == "Nats-Msg-Id" for k, _ in headers)
    ]
    assert made.to_pylist() == expected


@pytest.mark.parametrize(
    ("config", "column"),
    [
        ({"subject_transform": {"src": ">", "dest": "x.>"}}, "subject"),
        ({"sources": [{"name": "T"}]}, "subject"),
        ({"allow_msg_counter": True}, "value"),
    ],
)
def test_what_the_server_makes_itself_is_not_compared(config: dict[str, Any], column: str) -> None:
    row = {"value": b"v", "subject": "s.1", "headers": [("Nats-Msg-Id", b"1")]}
    batch = table({"value": pa.binary(), "headers": HEADERS, "subject": pa.string()}, [row])
    made = _rows(batch, stream_info(**config))
    assert [name for name in ROWS.names if made[name].null_count] == [column]


def guard(present: list[Row], done: int | None = None, digest: str = "") -> Guard:
    """One that has looked already, and so asks nobody."""
    made = Guard.__new__(Guard)
    rest = {"subject": b"", "value": b"", "headers": b"", "stream": "S"}
    made.origin, made.done, made.claim = ORIGIN, done, Claim(0, 0, {}, {}, done, digest)
    made.present = pa.Table.from_pylist([rest | row for row in present], ROWS)
    return made


NOBODY: Any = SimpleNamespace(rewrites=lambda stream, subject: False)
REWRITING: Any = SimpleNamespace(rewrites=lambda stream, subject: True)


def a_row(number: int, prefix: bytes, **other: bytes) -> Row:
    """A row of `numbered` as it is there, or with something else in it."""
    own = {"id": prefix + b"%d" % number, "subject": b"s%d" % number, "value": b"v%d" % number, "headers": b""}
    return own | other


@given(NUMBERS, st.dictionaries(st.integers(0, 40), st.booleans(), max_size=8))
def test_rows_that_are_there_are_found_and_the_first_that_differs(numbers: list[int], there: dict[int, bool]) -> None:
    prefix, chunk = ORIGIN.id.encode(), numbered(numbers)
    chunk.block = None
    others: dict[bool, dict[str, bytes]] = {True: {}, False: {"value": b"other"}}
    users = [a_row(n, b"i", **others[same]) for n, same in there.items()]
    assert guard(users).find(chunk, NOBODY)[1] is None, "what a user means by an id of his own is his affair"
    chunk.ids = pa.array([prefix + b"%d" % n for n in numbers], pa.binary())
    found, why = guard([a_row(n, prefix, **others[same]) for n, same in there.items()]).find(chunk, NOBODY)
    assert found.tolist() == [n for n in numbers if n in there]
    differ = [n for n in numbers if n in there and not there[n]]
    assert why == (f"row {differ[0]} was b'other' then and is {b'v%d' % differ[0]!r} now" if differ else None)


@pytest.mark.parametrize(
    ("block", "other", "why"),
    [
        (b"", {"subject": b"else"}, "row 2's subject was b'else' then and is b's2' now"),
        (b"A: 1\r\n", {"headers": b"A: 2\r\n"}, r"row 2's headers was b'A: 2\r\n' then and is b'A: 1\r\n' now"),
        (b"A: 1\r\n", {}, r"row 2's headers was b'' then and is b'A: 1\r\n' now"),
        (b"A: 1\r\n", {"headers": b"A: 1\r\n"}, None),
        (b"A:   1\r\n", {"headers": b"A: 1\r\n"}, None),
        (b"Nats-Msg-Id: 7\r\nNats-TTL: 1h\r\nA: 1\r\n", {"headers": b"A: 1\r\n"}, None),
    ],
)
def test_a_row_differs_by_its_subject_and_headers_too(block: bytes, other: dict[str, bytes], why: str | None) -> None:
    prefix, chunk = ORIGIN.id.encode(), numbered([1, 2, 3])
    chunk.ids = pa.array([prefix + b"%d" % n for n in (1, 2, 3)], pa.binary())
    chunk.block = pa.array([b"", block, b""], pa.binary())
    present = [a_row(3, prefix), a_row(2, prefix, **other)]
    assert guard(present).find(chunk, NOBODY)[1] == why
    if "subject" in other:
        assert guard(present).find(chunk, REWRITING)[1] is None, "an account or stream may change it"


def test_rows_without_ids_are_not_found() -> None:
    found, why = guard([a_row(1, b"i")]).find(numbered([1, 2], optional=False), NOBODY)
    assert found.tolist() == []
    assert why is None


@pytest.mark.parametrize(
    ("present", "done", "rows_", "why"),
    [
        ([], None, 5, None),
        ([], 5, 5, None),
        ([], 1200, 5, "there were 1,200 and now there are 5"),
        ([b"q-1/3/2/4"], None, 5, None),
        ([b"q-1/3/2/4", b"q-1/3/2/5", b"q-1/3/2/3"], None, 5, "there was a row 5 and now there are 5"),
        ([b"q-1/3/20/9", b"q-1/3/1/9", b"own"], None, 5, None),
    ],
)
def test_another_number_of_rows_is_noticed(present: list[bytes], done: int | None, rows_: int, why: str | None) -> None:
    assert guard([{"id": name} for name in present], done).differs(rows_, "") == why


@pytest.mark.parametrize(
    ("noted", "digest", "why"),
    [
        ("checksum 1", "checksum 1", None),
        ("checksum 1", "checksum 2", "there were as many, with checksum 1, and these have checksum 2"),
        ("streams A", "streams B", "there were as many, with streams A, and these have streams B"),
        ("", "checksum 2", None),
    ],
)
def test_other_rows_of_the_same_number_are_noticed_where_a_digest_was_noted(
    noted: str, digest: str, why: str | None
) -> None:
    assert guard([], 5, noted).differs(5, digest) == why


def test_the_checksum_of_rows_is_the_same_however_they_come_in_chunks() -> None:
    whole = numbered(list(range(10)))
    parts = [whole.part(0, 3), whole.part(3, 10)]
    assert reduce(lambda before, part: rows.checksum(part, before), parts, 0) == rows.checksum(whole, 0) != 0
    assert rows.checksum(numbered([0, 1]), 0) != rows.checksum(numbered([1, 0]), 0)


# Which stream takes a subject

TOKENS = ["a", "b", "é", "$JS", "a-b", "x+", "*", ">"]
FILTERS = [f for n in (1, 2, 3) for f in map(".".join, product(TOKENS, repeat=n)) if ">" not in f[:-1]]
PLAIN = ["a", "b", "é", "$JS", "a-b", "x+", "xx", "a*"]
SUBJECTS = [".".join(some) for n in (1, 2, 3) for some in product(PLAIN, repeat=n)]


def takes(filters: tuple[str, ...], subject: str) -> bool:
    """By the rules of NATS, token by token."""
    for text in filters:
        wanted, tokens = text.split("."), subject.split(".")
        if wanted[-1] == ">":
            if len(tokens) < len(wanted):
                continue
            wanted, tokens = wanted[:-1], tokens[: len(wanted) - 1]
        if len(wanted) == len(tokens) and all(w in ("*", t) for w, t in zip(wanted, tokens, strict=True)):
            return True
    return False


@given(st.lists(st.sampled_from(FILTERS), min_size=1, max_size=4).map(tuple))
@example(("$JS.a-b.>", "x+.*", "é.é"))
def test_arrow_matches_the_subjects_that_a_stream_takes(filters: tuple[str, ...]) -> None:
    column = pa.array([subject.encode() for subject in SUBJECTS], pa.binary())
    found = np.asarray(pc.match_substring_regex(column, as_regex(filters)))
    assert [s for s, yes in zip(SUBJECTS, found, strict=True) if yes] == [s for s in SUBJECTS if takes(filters, s)]


def test_subjects_that_are_no_text_are_matched_by_wildcards() -> None:
    column = pa.array([b"a.\xff", b"a.\xc3", b"\xff.a", b"a"], pa.binary())
    assert pc.match_substring_regex(column, as_regex(("a.*",))).to_pylist() == [True, True, False, False]
    assert pc.match_substring_regex(column, as_regex((">",))).to_pylist() == [True] * 4


class Server:
    """Answers what `Targets` asks, and counts."""

    def __init__(self, streams: dict[str, tuple[str, ...]]):
        self.connection = SimpleNamespace(options=NatsOptions(), info={"server_id": "N1", "server_name": ""})
        self.all, self.asked, self.ledger = streams, 0, LEDGER

    def names(self, subject: str | None = None) -> list[str]:
        self.asked += 1
        return [name for name, filters in self.all.items() if subject is None or takes(filters, subject)]

    def others(self) -> list[str]:
        return Calls.others(cast("Calls", self))

    def stream(self, name: str) -> StreamInfo:
        state = {
            "first_seq": 1,
            "last_seq": 5,
            "messages": 5,
            "bytes": 9,
            "first_ts": "2026-11-15T12:00:00Z",
            "last_ts": "2026-11-15T12:00:00Z",
        }
        config = {"name": name, "subjects": list(self.all[name]), "duplicate_window": 2 * 10**9, "num_replicas": 1}
        return StreamInfo.of({"config": config, "state": state, "created": "2026-11-15T12:00:00Z"})

    def streams(self, names: list[str]) -> dict[str, StreamInfo]:
        return {name: self.stream(name) for name in names}


def targets(server: Server) -> Targets:
    sys.__dict__["_penstock_targets"] = {}  # forget the streams of other tests
    return Targets(cast("Calls", server))


ORDERS = {"O": ("orders.>",), "P": ("pay.*", "pay.*.late"), "E": ("é.a",)}


@given(st.lists(st.sampled_from(["orders.eu", "orders.us.x", "pay.1", "pay.1.late", "é.a"]), max_size=8))
def test_the_streams_of_subjects_are_found_and_each_is_asked_for_once(subjects: list[str]) -> None:
    server = Server(ORDERS)
    mine = targets(server)
    wanted = {name for name, filters in ORDERS.items() if any(takes(filters, s) for s in subjects)}
    for _ in range(2):
        found = mine.of(pa.array([s.encode() for s in subjects], pa.binary()))
        assert sorted(found) == sorted(wanted)
        assert set(mine.streams) == wanted
    assert server.asked == len(wanted)
    assert mine.window == (2.0 if wanted else 0.0)


def test_a_subject_that_no_stream_takes_is_refused_with_those_that_are_close() -> None:
    mine = targets(Server(ORDERS))
    with pytest.raises(OptionError, match=r"no stream takes the subject 'pay'.*'P' takes pay\.\*"):
        mine.of(pa.array([b"orders.eu", b"pay"], pa.binary()))
    with pytest.raises(OptionError, match="Make one: there are none yet"):
        targets(Server({})).of(pa.array([b"a"], pa.binary()))


def test_a_ledger_is_no_stream_to_write_rows_to() -> None:
    mine = targets(Server(ORDERS | {"PENSTOCK_LEDGER": ("PENSTOCK_LEDGER.>",)}))
    with pytest.raises(OptionError, match=r"'E' takes é\.a") as caught:
        mine.of(pa.array([b"LEDGER.x"], pa.binary()))
    assert "PENSTOCK_LEDGER" not in str(caught.value)
    with pytest.raises(OptionError, match="Make one: there are none yet"):
        targets(Server({"PENSTOCK_LEDGER": ("PENSTOCK_LEDGER.>",)})).of(pa.array([b"a"], pa.binary()))


# Who writes, and what was written

ORIGINS = st.builds(Origin, st.uuids().map(str), st.integers(0, 2**40), st.integers(0, 2**20))


@given(ORIGINS, ORIGINS, st.integers(0, 999), st.integers(0, 999))
@example(Origin("q", 1, 11), Origin("q", 1, 1), 0, 10)
@example(Origin("q", 11, 1), Origin("q", 1, 1), 1, 11)
def test_no_two_rows_have_the_same_name(one: Origin, other: Origin, row: int, another: int) -> None:
    assert (f"{one.id}{row}" == f"{other.id}{another}") == ((one, row) == (other, another))
    assert one.id.startswith(other.id) == (one == other)
    assert re.fullmatch(r"\S+/", one.id), "a header's value on one line, without spaces"


def test_an_origin_says_who_it_is() -> None:
    assert ORIGIN.id == "q-1/3/2/"
    assert str(ORIGIN) == "partition 2 of batch 3"


@pytest.mark.parametrize(
    ("receipt", "expected"),
    [
        (Receipt(ORIGIN, 0), "partition 2 of batch 3 wrote 0 rows"),
        (Receipt(ORIGIN, 1234, 99, {"S": (5, 1238)}), "partition 2 of batch 3 wrote 1,234 rows (S 5 to 1238)"),
        (
            Receipt(ORIGIN, 3000, spans={"T": (1, 2), "S": (7, 7)}, known=1500),
            "partition 2 of batch 3 wrote 3,000 rows, 1,500 of them there already (S 7 to 7, T 1 to 2)",
        ),
    ],
)
def test_a_receipt_says_what_was_written_and_where(receipt: Receipt, expected: str) -> None:
    assert str(receipt) == expected


def test_receipts_are_equal_where_they_say_the_same() -> None:
    assert Receipt(ORIGIN, 1) == Receipt(Origin("q-1", 3, 2), 1, 0, {}, 0)
    assert Receipt(ORIGIN, 1).spans is not Receipt(ORIGIN, 1).spans
