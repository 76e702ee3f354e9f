"""Calls of S2's API: list streams, find their first and next positions, read records. Knows paths and answers; nothing
of planning, attempts or Spark.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote

import numpy as np

from penstock.arrow.buffers import Ints
from penstock.clients.answers import an_object, field, objects
from penstock.clients.s2.frames import Deframer, failure
from penstock.clients.s2.http import PIPELINE, Connection, Request, Response
from penstock.clients.s2.options import S2Options
from penstock.clients.s2.reach import ApiError, basins, checked, connect, keep, refused
from penstock.clients.s2.records import Records, read_batch
from penstock.errors import Disconnected, OptionError, PenstockError, ProtocolError, nearest

SESSION = {"content-type": "s2s/proto"}
PROTO = {"content-type": "application/protobuf", "accept": "application/protobuf"}
JSON = {"content-type": "application/json"}
# Bytes of frames turned into columns at once.
GATHER = 1 << 20


class Last(NamedTuple):
    """The end of a stream: its tail, when it was created, and the record before the tail, unless that is trimmed."""

    tail: int
    created: str
    record: Records


class Calls:
    """Calls over one connection. The first call takes it from the pool, `close` gives it back."""

    def __init__(self, options: S2Options):
        self.options = options
        self._connection: Connection | None = None

    def open(self) -> Connection:
        """The connection; a new one, or one from the pool, at the first call."""
        if self._connection is None:
            self._connection = connect(self.options)
        return self._connection

    def close(self) -> None:
        """Give the connection back to the pool; close it where it is broken or has an unread answer."""
        if self._connection is not None:
            keep(self.options, self._connection)
        self._connection = None

    def drop(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def reach(self) -> None:
        """Check that the basin exists and accepts the access token. Raises where it does not."""
        _page(self._ask([_listing("", limit=1)])[0])

    def streams(self, prefix: str) -> dict[str, str]:
        """The names of the streams that start with `prefix`, and when each was created."""
        streams: dict[str, str] = {}
        after, more = "", True
        while more:
            before = after
            page, after, more = _page(self._ask([_listing(prefix, after)])[0])
            streams |= page
            if more and after <= before:
                raise ProtocolError(f"S2 lists streams after {before!r} up to {after!r}, and says that more follow.")
        return streams

    def few(self, prefix: str) -> dict[str, str]:
        """Like `streams`, where there are at most a thousand; empty where there are more."""
        page, _, more = _page(self._ask([_listing(prefix)])[0])
        return {} if more else page

    def named(self, names: Iterable[str]) -> dict[str, str]:
        """When each of these streams was created; those that do not exist are left out. Creates no stream, even in a
        basin that creates streams when they are read.

        One page of the list covers up to a thousand names. It is used while it covers many of those that are left; the
        others are asked for one by one, in one pipeline.
        """
        left = sorted(set(names))
        created: dict[str, str] = {}
        while len(left) > PIPELINE:
            first, rest = self._ask([_listing(left[0], limit=1), _listing(beginning(left), left[0])])
            page, last, more = _page(rest)
            page |= _page(first)[0]
            after_page = [name for name in left if name > last] if more else []
            created |= {name: page[name] for name in left if name in page}
            covers_few = len(left) - len(after_page) < PIPELINE
            left = after_page
            if covers_few:
                break
        # In the list, a name comes before all longer names that start with it.
        for name, answer in zip(left, self._ask([_listing(name, limit=1) for name in left]), strict=True):
            page = _page(answer)[0]
            if name in page:
                created[name] = page[name]
        return created

    def tails(self, names: Sequence[str]) -> dict[str, int]:
        """The next position of each stream; deleted streams are left out. Only for streams that `streams` or `named`
        returned: a basin may create a stream whose tail is asked for.
        """
        responses = self._ask([Request("GET", f"{path(name)}/tail") for name in names])
        tails = {}
        for name, response in zip(names, responses, strict=True):
            try:
                tail = field(an_object(checked(response).body, "S2"), "tail", dict)
                tails[name] = field(tail, "seq_num", int)
            except ApiError as error:
                if not error.is_gone:
                    raise
        return tails

    def firsts(self, tails: Mapping[str, int]) -> dict[str, int]:
        """The position of the first record of each stream; its tail where it has none."""
        requests = [Request("GET", f"{path(name)}?seq_num=0&count=1", PROTO) for name in tails]
        firsts = {}
        for (name, tail), response in zip(tails.items(), self._ask(requests), strict=True):
            records = _records(response)
            firsts[name] = int(records.sequence[0]) if len(records) else tail
        return firsts

    def sizes(self, places: Sequence[tuple[str, int]], count: int) -> list[float]:
        """The average size of up to `count` records from each stream and position on; 0 where there are none."""
        requests = [Request("GET", f"{path(name)}?seq_num={at}&count={count}", PROTO) for name, at in places]
        return [len(response.body) / max(1, len(_records(response))) for response in self._ask(requests)]

    def at_time(self, stream: str, milliseconds: int) -> int | None:
        """The position of the first record at or after a time; None where all are older."""
        request = Request("GET", f"{path(stream)}?timestamp={max(0, milliseconds)}&count=1", PROTO)
        records = _records(self._ask([request])[0])
        return int(records.sequence[0]) if len(records) else None

    def last(self, streams: Sequence[str]) -> dict[str, Last]:
        """The end of each stream; those that do not exist are left out."""
        created = self.named(streams)
        tails = self.tails(list(created))
        written = [name for name, tail in tails.items() if tail]
        requests = [Request("GET", f"{path(name)}?seq_num={tails[name] - 1}&count=1", PROTO) for name in written]
        records = dict(zip(written, map(_records, self._ask(requests)), strict=True))
        nothing = read_batch(b"")
        return {name: Last(tail, created[name], records.get(name, nothing)) for name, tail in tails.items()}

    def read_short(self, ranges: Sequence[tuple[str, int, int]]) -> list[Records]:
        """For each (stream, start, count) the records of one response, which may be fewer; none where S2 refuses."""
        paths = (f"{path(stream)}?seq_num={start}&count={count}" for stream, start, count in ranges)
        responses = self._ask([Request("GET", records_path, PROTO) for records_path in paths])
        return [read_batch(response.body if response.status == 200 else b"") for response in responses]

    def read(self, stream: str, start: int, count: int) -> Iterator[Records]:
        """Up to `count` records from a position on, some thousands at a time. Ends at the tail."""
        headers = dict(SESSION)
        if self.options.compression != "none":
            headers["accept-encoding"] = self.options.compression
        connection = self.open()
        request = Request("GET", f"{path(stream)}?seq_num={start}&count={count}&wait=0", headers)
        response, body = connection.stream(request)
        if response.status == 416:  # the position is at the tail, or after it
            return
        checked(response)
        frames, waiting, size, whole = Deframer(), [], 0, False
        try:
            for piece in body:
                for frame in frames.feed(piece):
                    if frame.terminal:
                        reason = failure(frame)
                        raise refused(reason.status, reason.answer)
                    waiting.append(frame.body)
                    size += len(frame.body)
                if size >= GATHER:
                    yield read_batch(b"".join(waiting))
                    waiting, size = [], 0
            whole = True
        finally:
            if not whole:  # the rest of the answer has not been read
                self.drop()
        if waiting:
            yield read_batch(b"".join(waiting))
        if not frames.complete:
            raise Disconnected(f"{connection} ended an answer in the middle of a frame")

    def make(self, stream: str, config: dict[str, object]) -> None:
        """Create a stream, unless it exists."""
        request = Request("PUT", f"/v1/streams/{quote(stream, safe='')}", JSON, json.dumps(config).encode())
        checked(self._ask([request])[0])

    def missing(self, stream: str, option: str) -> OptionError:
        """The error for a stream that does not exist, with similar names. `option` is the one that names it."""
        try:
            names = self.streams("")
        except PenstockError:  # the token may not allow listing
            names = {}
        return OptionError(
            f"basin '{self.options.basin}' has no stream '{stream}'. {nearest(stream, names)} Check the options "
            f"'{option}' and 'basin'."
        )

    def _ask(self, requests: Sequence[Request]) -> list[Response]:
        """The responses, whatever their status; only a missing basin is raised."""
        answers: list[Response] = []
        while len(answers) < len(requests):
            connection = self.open()
            used = connection.used
            try:
                answers += connection.ask(requests[len(answers) :])
            except Disconnected:
                if not used:
                    raise
                # S2 closed a connection that had been used before: ask again over a new one.
            if connection.closed:
                self.drop()
        if any(answer.status == 404 and answer.json().get("code") == "basin_not_found" for answer in answers):
            raise self._no_basin()
        return answers

    def _no_basin(self) -> OptionError:
        wanted, where = self.options.basin, self.options.account()
        what = f"there is no basin '{wanted}' at {self.options.base()}."
        if where is None:
            return OptionError(f"{what} Check the options 'basin' and 'basinEndpoint'.")
        place = "basinEndpoint" if self.options.endpoint is None else "endpoint"
        return OptionError(
            f"{what} {nearest(wanted, basins(self.options, where))} Check the options 'basin' and '{place}'."
        )


def _listing(prefix: str, after: str = "", limit: int = 1000) -> Request:
    where = f"prefix={quote(prefix, safe='')}&start_after={quote(after, safe='')}&limit={limit}"
    return Request("GET", f"/v1/streams?{where}")


def _page(response: Response) -> tuple[dict[str, str], str, bool]:
    """A page of the list: when each stream was created, the last name, and whether more follow. Streams that are being
    deleted are left out.
    """
    answer = an_object(checked(response).body, "S2")
    entries = {field(entry, "name", str): entry for entry in objects(answer, "streams")}
    live = {name: entry for name, entry in entries.items() if entry.get("deleted_at") is None}
    created = {name: field(entry, "created_at", str) for name, entry in live.items()}
    return created, max(entries, default=""), field(answer, "has_more", bool)


def beginning(names: Sequence[str]) -> str:
    """The longest common prefix."""
    low, high = min(names), max(names)
    return next((low[:i] for i, letter in enumerate(low) if high[i : i + 1] != letter), low)


def path(stream: str) -> str:
    """The path of the records of a stream."""
    return f"/v1/streams/{quote(stream, safe='')}/records"


def _records(response: Response) -> Records:
    """The records in a response; none where the position has none or the stream is gone."""
    if response.status == 416:
        return read_batch(b"")
    try:
        return read_batch(checked(response).body)
    except ApiError as error:
        if error.is_gone:
            return read_batch(b"")
        raise


def gaps(sequence: Ints, start: int) -> list[tuple[int, int]]:
    """The ranges (first, next) of positions from `start` on that are missing before the last of `sequence`."""
    if not len(sequence):
        return []
    missing = [(start, int(sequence[0]))] if sequence[0] > start else []
    if sequence[-1] - sequence[0] != len(sequence) - 1:
        at = np.flatnonzero(np.diff(sequence) > 1)
        missing += [(int(sequence[i]) + 1, int(sequence[i + 1])) for i in at]
    return missing
