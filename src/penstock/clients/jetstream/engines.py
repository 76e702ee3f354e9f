"""Two ways to read a range of a stream, one promise: they end when every message of it was seen, and only then.

`consumer` makes an ephemeral consumer that keeps no state and pulls; it is the fast one. `direct` asks
DIRECT.GET, which takes nothing from a work queue, needs no consumer, and is answered by any replica.
Neither ends of its own accord at the end of a range, and a replica may lag behind: when nothing more
comes before the end, the leader is asked whether that is so. And servers that pass messages on to one another drop
some of them when their link breaks, while the client's own connection stands: each message says how many came before.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.clients.jetstream import api
from penstock.clients.jetstream.calls import Calls
from penstock.clients.nats import headers, wire
from penstock.clients.nats.subjects import as_regex
from penstock.errors import ConnectError, Disconnected, ProtocolError

# Up to 64 MB may wait in the server for a client before it is cut off as slow: stay far below.
PULL_BYTES = 8 << 20
PULL = 20_000
DIRECT_BYTES = 4 << 20
DIRECT = 10_000
# How often DIRECT.GET is asked again when the answer is a mirror's, or a replica's that lags: for 6 s in all.
DOUBTS = 50


class Incomplete(ConnectError):  # noqa: N818 - what it is, and the base says that it is an error
    """DIRECT.GET does not give all there is."""


class Rows(NamedTuple):
    """A piece of a range: its columns, and where reading goes on after it."""

    subject: pa.Array
    sequence: pa.Array
    timestamp: pa.Array
    value: pa.Array
    headers: Callable[[], pa.Array]
    next: int


def as_batch(rows: Rows, stream: str, columns: pa.Schema) -> pa.RecordBatch:
    """The rows as those of Spark, in the order of `columns`."""
    made: dict[str, Callable[[], pa.Array]] = {
        "value": lambda: rows.value,
        "headers": rows.headers,
        "timestamp": lambda: rows.timestamp,
        "stream": lambda: pa.repeat(stream, len(rows.sequence)),
        "sequence": lambda: rows.sequence,
        "subject": lambda: rows.subject,
    }
    return pa.RecordBatch.from_arrays([made[field.name]() for field in columns], schema=columns)


# Reads the messages of a stream from one sequence up to another, exclusive, that match one of the filters.
Engine = Callable[[Calls, str, int, int, Sequence[str]], Iterator[Rows]]


def consumer(
    calls: Calls, stream: str, start: int, end: int, filters: Sequence[str], most_idle: float = api.READER_IDLE
) -> Iterator[Rows]:
    """Read through an ephemeral consumer, with pulls kept in flight so that the server never waits for us."""
    made = calls.create(stream, api.reader(start, filters, stream, most_idle))
    connection = calls.connection
    sid, inbox = connection.subscribe()
    subject = f"{calls.prefix}.CONSUMER.MSG.NEXT.{stream}.{made['name']}"
    most = max(PULL_BYTES, connection.max_payload + 65_536)
    largest = api.PullLimits.of(made["config"], PULL, most).batch
    at, pulls, delivered = start, 0, 0
    open_pulls: dict[bytes, int] = {}
    ahead = 0  # messages asked for and not yet here
    dry = made["num_pending"] == 0
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
                if api.deliveries(scan.messages) != (delivered + 1, delivered + len(scan.messages)):
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
            calls.forget(stream, made["name"])
    if at < end and not _proven(calls, stream, at, end, filters):
        raise Disconnected(f"the replica that was asked lacks messages of stream '{stream}' after {at}")


class PullEnd(NamedTuple):
    """What the status at the end of a pull says: how many will not come, and why."""

    missing: int
    dry: bool = False
    too_large: bool = False


def pull_ended(frame: wire.Frame, asked: int) -> PullEnd:
    """What the end of a pull means; an error where the consumer is gone."""
    status, text, fields = headers.fields(frame.headers)
    missing = api.number(dict(fields).get("Nats-Pending-Messages", b"%d" % asked))
    if status == 404 or (status == 408 and text != "Requests Pending"):
        return PullEnd(missing, dry=True)
    if status == 408 or (status == 409 and text == "Batch Completed"):
        return PullEnd(missing)
    if status == 409 and text == "Message Size Exceeds MaxBytes":
        return PullEnd(missing, too_large=True)
    # Consumer deleted, leadership changed, no responders: make another consumer.
    raise Disconnected(f"the consumer ended: {status} {text}")


def _clip(stream: str, at: int, end: int, rows: Rows) -> Rows:
    """The rows inside [at, end), and where to go on after them."""
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
    """Deliveries of a consumer as columns."""
    return Rows(
        *api.ack_columns(messages), messages.values, lambda: headers.headers_column(messages.blocks, len(messages)), 0
    )


def direct(calls: Calls, stream: str, start: int, end: int, filters: Sequence[str]) -> Iterator[Rows]:
    """Read with DIRECT.GET. It knows one filter; with several, everything comes and the others are dropped here.

    Mirrors answer too, under their own name, and may keep less: what they say is not taken, and asked again.
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
                found, other, status_block = direct_rows(scan.messages, stream)
                mirror = mirror or other
                if found is not None and not mirror:
                    if not _unbroken(scan.messages.blocks, len(found.sequence), last):
                        raise _missing(stream, at)
                    last = b"%d" % found.sequence[-1].as_py()
                    rows = _clip(stream, at, end, found)
                    at, doubts = rows.next, 0
                    yield _matching(rows, filters) if len(filters) > 1 else rows
            status, text, fields = headers.fields(status_block)
            said = dict(fields)
            if not mirror and said.get("Nats-Last-Sequence", last) != last:
                raise _missing(stream, at)
            if status == 503:
                raise Disconnected(f"no server answers DIRECT.GET for stream '{stream}'")
            if status not in (204, 404):
                raise ProtocolError(f"DIRECT.GET of stream '{stream}' answered {status} {text}")
            if mirror or (said.get("Nats-Num-Pending", b"0") == b"0" and at < end):
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
    """Whether none is missing before or among the first `count` messages of an answer of DIRECT.GET: each tells the
    sequence of the one before it in the same answer, and how many are to come.
    """
    ends = [api.direct_fields(blocks[row].as_py()) for row in (0, count - 1)]
    first, final = (fields or (b"0",) * 6 for fields in ends)
    return first[5] == last and api.number(first[4]) - api.number(final[4]) == count - 1


def _missing(stream: str, at: int) -> Disconnected:
    return Disconnected(f"messages of stream '{stream}' after {at} were lost between servers")


class _Answer(NamedTuple):
    """Some of an answer of DIRECT.GET."""

    rows: Rows | None
    mirror: str  # that answered in the place of the stream, or empty
    end: bytes | None  # the status behind the last message


def direct_rows(messages: wire.Messages, stream: str) -> _Answer:
    """Messages of DIRECT.GET as columns. Only the last can be a status: one question is under way at a time."""
    blocks, values, end = messages.blocks, messages.values, None
    assert blocks is not None, "DIRECT.GET answers with headers"
    if api.direct_fields(last := blocks[-1].as_py()) is None:
        blocks, values, end = blocks[:-1], values[:-1], last
    if not len(blocks):
        return _Answer(None, "", end)
    found = api.direct_columns(blocks, stream)
    rows = Rows(*found[:3], values, lambda: headers.headers_column(found.blocks(), len(values)), 0)
    return _Answer(rows, found.mirror, end)


def _matching(rows: Rows, filters: Sequence[str]) -> Rows:
    # As bytes: a subject may be no UTF-8, and then matches nothing as text.
    keep = pc.match_substring_regex(rows.subject.view(pa.binary()), as_regex(filters))
    subject, sequence, timestamp, value = (column.filter(keep) for column in rows[:4])
    return Rows(subject, sequence, timestamp, value, lambda: rows.headers().filter(keep), rows.next)


def _proven(calls: Calls, stream: str, start: int, end: int, filters: Sequence[str]) -> bool:
    """Whether the leader, too, has nothing from `start` up to `end`: a replica may lag."""
    first = calls.first_from(stream, start, filters)
    return first is None or first.sequence >= end
