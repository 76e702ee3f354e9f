"""Two ways to read a range of a stream, with one promise: they end when every message of it was read, and only then.

`consumer` pulls from an ephemeral consumer; it is the fast one. `direct` uses DIRECT.GET: it takes nothing from a work
queue, needs no consumer, and any replica answers it. Neither knows the end of a range, and a replica may lag: when
nothing more comes before the end, the leader is asked whether there is more. Servers drop messages when the link
between them breaks, while the client's connection stays up: the counters in the messages show that. Knows no Spark and
no plans.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.clients.jetstream import api, columns
from penstock.clients.jetstream.calls import Calls
from penstock.clients.nats import headers, wire
from penstock.clients.nats.subjects import as_regex
from penstock.errors import ConnectError, Disconnected, ProtocolError

# A server disconnects a slow client with 64 MB pending: stay far below.
PULL_BYTES = 8 << 20
PULL = 20_000
DIRECT_BYTES = 4 << 20
DIRECT = 10_000
# How often DIRECT.GET is asked again when a mirror answers, or a replica that lags: for 6 s in all.
DOUBTS = 50


class Incomplete(ConnectError):  # noqa: N818 - what it is, and the base says that it is an error
    """DIRECT.GET does not return all messages."""


class Rows(NamedTuple):
    """Messages of a range as columns, and the sequence at which reading continues."""

    subject: pa.Array
    sequence: pa.Array
    timestamp: pa.Array
    value: pa.Array
    headers: Callable[[], pa.Array]
    next: int


def as_batch(rows: Rows, stream: str, schema: pa.Schema) -> pa.RecordBatch:
    """The rows with the columns of `schema`, in its order."""
    return pa.RecordBatch.from_arrays([_column(rows, stream, name) for name in schema.names], schema=schema)


def _column(rows: Rows, stream: str, name: str) -> pa.Array:
    if name == "headers":
        return rows.headers()
    if name == "stream":
        return pa.repeat(stream, len(rows.sequence))
    return {
        "value": rows.value, "timestamp": rows.timestamp, "sequence": rows.sequence, "subject": rows.subject,
    }[name]  # fmt: skip


# Reads the messages of a stream in [start, end) that match one of the filters; all of them without filters.
Engine = Callable[[Calls, str, int, int, Sequence[str]], Iterator[Rows]]


def consumer(
    calls: Calls, stream: str, start: int, end: int, filters: Sequence[str], most_idle: float = api.READER_IDLE
) -> Iterator[Rows]:
    """Read through an ephemeral consumer. Several pulls are open at a time, so that the server never waits."""
    info = calls.create(stream, api.reader(start, filters, stream, most_idle))
    connection = calls.connection
    sid, inbox = connection.subscribe()
    subject = f"{calls.prefix}.CONSUMER.MSG.NEXT.{stream}.{info['name']}"
    most = max(PULL_BYTES, connection.max_payload + 65_536)
    largest = api.PullLimits.of(info["config"], PULL, most).batch
    at, pulls, delivered = start, 0, 0
    open_pulls: dict[bytes, int] = {}
    ahead = 0  # messages that were asked for and have not arrived
    dry = info["num_pending"] == 0
    try:
        while at < end and not dry:
            while ahead < min(PULL, end - at) and len(open_pulls) < 4:
                pulls += 1
                reply, batch = f"{inbox}.{pulls}", min(largest, end - at - ahead)
                connection.publish(subject, api.pull(batch, most), reply)
                open_pulls[reply.encode()] = batch
                ahead += batch
            scan = connection.receive(sid, linger=ahead > 1000)
            if scan.messages is not None:
                ahead -= len(scan.messages)
                rows = _clip(stream, at, end, consumer_rows(scan.messages))
                if columns.deliveries(scan.messages) != (delivered + 1, delivered + len(scan.messages)):
                    raise _missing(stream, at)
                delivered += len(scan.messages)
                at = rows.next
                yield rows
            for frame in scan.others:
                if frame.subject in open_pulls:
                    ended = pull_ended(frame, open_pulls.pop(frame.subject))
                    ahead -= ended.missing
                    dry |= ended.dry
                    most *= 2 if ended.too_large else 1
    finally:
        with suppress(Disconnected):
            connection.unsubscribe(sid)
            calls.forget(stream, info["name"])
    if at < end and not _proven(calls, stream, at, end, filters):
        raise Disconnected(f"the replica that was asked lacks messages of stream '{stream}' after {at}")


class PullEnd(NamedTuple):
    """The status that ended a pull: how many of its messages will not come, and why."""

    missing: int
    dry: bool = False
    too_large: bool = False


def pull_ended(frame: wire.Frame, asked: int) -> PullEnd:
    """The meaning of the status that ended a pull of `asked` messages. A Disconnected where the consumer is gone."""
    status, text, fields = headers.fields(frame.headers)
    missing = api.number(dict(fields).get("Nats-Pending-Messages", b"%d" % asked))
    if status == 404 or (status == 408 and text != "Requests Pending"):
        return PullEnd(missing, dry=True)
    if status == 408 or (status == 409 and text == "Batch Completed"):
        return PullEnd(missing)
    if status == 409 and text == "Message Size Exceeds MaxBytes":
        return PullEnd(missing, too_large=True)
    # Consumer deleted, leadership changed, no responders: the caller must create another consumer.
    raise Disconnected(f"the consumer ended: {status} {text}")


def _clip(stream: str, at: int, end: int, rows: Rows) -> Rows:
    """The rows inside [at, end), and the sequence at which reading continues."""
    numbers = np.asarray(rows.sequence)
    if not (numbers[1:] > numbers[:-1]).all():
        raise ProtocolError(f"messages of stream '{stream}' arrived out of order")
    low, high = int(np.searchsorted(numbers, at)), int(np.searchsorted(numbers, end))
    after = min(max(int(numbers[-1]) + 1, at), end)
    if low == 0 and high == len(numbers):
        return rows._replace(next=after)
    part = slice(low, high)
    subject, sequence, timestamp, value = (column[part] for column in rows[:4])
    return Rows(subject, sequence, timestamp, value, lambda: rows.headers()[part], after)


def consumer_rows(messages: wire.Messages) -> Rows:
    """Messages of a consumer as columns."""
    subject, sequence, timestamp = columns.ack_columns(messages)
    return Rows(
        subject,
        sequence,
        timestamp,
        messages.values,
        lambda: headers.headers_column(messages.blocks, len(messages)),
        0,
    )


def direct(calls: Calls, stream: str, start: int, end: int, filters: Sequence[str]) -> Iterator[Rows]:
    """Read with DIRECT.GET. It takes one filter; with several, all messages are read and filtered here.

    Mirrors may answer too, under their own names, and may hold fewer messages: their answers are dropped, and the
    request is sent again.
    """
    connection = calls.connection
    subject = f"{calls.prefix}.DIRECT.GET.{stream}"
    sid, inbox = connection.subscribe()
    at, asked, doubts = start, 0, 0
    try:
        while at < end:
            asked += 1
            batch, reply, mirror, last = min(DIRECT, end - at), f"{inbox}.{asked}", "", b"0"
            connection.publish(subject, api.get(at, batch, DIRECT_BYTES, filters), reply)
            status_block: bytes | None = None
            while status_block is None:
                scan = connection.receive(sid, linger=batch > 1000, kind="direct")
                if scan.messages is None:
                    continue
                answer = direct_rows(scan.messages, stream)
                mirror, status_block = mirror or answer.mirror, answer.status_block
                if answer.rows is not None and not mirror:
                    if not _unbroken(scan.messages.blocks, len(answer.rows.sequence), last):
                        raise _missing(stream, at)
                    last = b"%d" % answer.rows.sequence[-1].as_py()
                    rows = _clip(stream, at, end, answer.rows)
                    at, doubts = rows.next, 0
                    yield _matching(rows, filters) if len(filters) > 1 else rows
            status, text, fields = headers.fields(status_block)
            status_fields = dict(fields)
            if not mirror and status_fields.get("Nats-Last-Sequence", last) != last:
                raise _missing(stream, at)
            if status == 503:
                raise Disconnected(f"no server answers DIRECT.GET for stream '{stream}'")
            if status not in (204, 404):
                raise ProtocolError(f"DIRECT.GET of stream '{stream}' answered {status} {text}")
            if mirror or (status_fields.get("Nats-Num-Pending", b"0") == b"0" and at < end):
                if not mirror and _proven(calls, stream, at, end, filters):
                    return
                doubts += 1
                if doubts > DOUBTS:
                    why = f"its mirror '{mirror}' answers in its place" if mirror else "replicas lack its last messages"
                    raise Incomplete(
                        f"stream '{stream}' cannot be read with DIRECT.GET: {why}. Turn mirror_direct off on its "
                        "mirrors, or set readEngine=consumer."
                    )
                time.sleep(0.005 * doubts)
    finally:
        with suppress(Disconnected):
            connection.unsubscribe(sid)


def _unbroken(blocks: pa.Array, count: int, last: bytes) -> bool:
    """Whether no message is missing before or among the first `count` of these, where `last` was the one before. Each
    message of DIRECT.GET has the sequence of the one before it, and the number of those that follow.
    """
    ends = [columns.direct_fields(blocks[row].as_py()) for row in (0, count - 1)]
    first, final = (fields or (b"0",) * 6 for fields in ends)
    return first[5] == last and api.number(first[4]) - api.number(final[4]) == count - 1


def _missing(stream: str, at: int) -> Disconnected:
    return Disconnected(f"messages of stream '{stream}' after {at} were lost between servers")


class _Answer(NamedTuple):
    """A part of an answer of DIRECT.GET."""

    rows: Rows | None
    mirror: str  # the name of a mirror that answered; empty where none did
    status_block: bytes | None  # the header block of the status after the last message


def direct_rows(messages: wire.Messages, stream: str) -> _Answer:
    """Messages of DIRECT.GET as columns. Only the last can be a status, as one request is open at a time."""
    blocks, values, status_block = messages.blocks, messages.values, None
    assert blocks is not None, "DIRECT.GET answers with headers"
    if columns.direct_fields(last := blocks[-1].as_py()) is None:
        blocks, values, status_block = blocks[:-1], values[:-1], last
    if not len(blocks):
        return _Answer(None, "", status_block)
    answer = columns.direct_columns(blocks, stream)
    rows = Rows(*answer[:3], values, lambda: headers.headers_column(answer.blocks(), len(values)), 0)
    return _Answer(rows, answer.mirror, status_block)


def _matching(rows: Rows, filters: Sequence[str]) -> Rows:
    # As bytes: a subject that is no UTF-8 would match nothing as text.
    keep = pc.match_substring_regex(rows.subject.view(pa.binary()), as_regex(filters))
    subject, sequence, timestamp, value = (column.filter(keep) for column in rows[:4])
    return Rows(subject, sequence, timestamp, value, lambda: rows.headers().filter(keep), rows.next)


def _proven(calls: Calls, stream: str, start: int, end: int, filters: Sequence[str]) -> bool:
    """Whether the leader, too, has no message in [start, end): a replica may lag."""
    first = calls.first_from(stream, start, filters)
    return first is None or first.sequence >= end
