"""S2's API as questions: which streams there are, where they begin and end, their records. Knows paths and answers;
nothing of positions' meaning, attempts or Spark.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote

import numpy as np

from penstock.arrow.buffers import Ints
from penstock.clients.answers import an_object, field, objects
from penstock.clients.s2 import wire
from penstock.clients.s2.http import PIPELINE, Connection, Request, Response
from penstock.clients.s2.options import S2Options
from penstock.clients.s2.reach import ApiError, basins, checked, connect, keep, refused
from penstock.clients.s2.wire import Records
from penstock.errors import Disconnected, OptionError, PenstockError, ProtocolError, nearest

SESSION = {"content-type": "s2s/proto"}
PROTO = {"content-type": "application/protobuf", "accept": "application/protobuf"}
JSON = {"content-type": "application/json"}
# So many bytes of frames are turned into columns at once.
GATHER = 1 << 20


class Last(NamedTuple):
    """How a stream ends: its tail, when the stream was made, and the record before the tail, if that is held."""

    tail: int
    created: str
    record: Records


class Calls:
    """Questions over one connection, which is taken at the first of them and given back with `close`."""

    def __init__(self, options: S2Options):
        self.options = options
        self._connection: Connection | None = None

    def open(self) -> Connection:
        """The connection."""
        if self._connection is None:
            self._connection = connect(self.options)
        return self._connection

    def close(self) -> None:
        """Give the connection back, or throw it away if it broke or has an answer to come."""
        if self._connection is not None:
            keep(self.options, self._connection)
        self._connection = None

    def drop(self) -> None:
        """Throw the connection away."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def reach(self) -> None:
        """See that the basin is there and lets us in."""
        _page(self._ask([_listing("", limit=1)])[0])

    def streams(self, prefix: str) -> dict[str, str]:
        """The streams whose names begin so, and when each was made."""
        found: dict[str, str] = {}
        after, more = "", True
        while more:
            before = after
            page, after, more = _page(self._ask([_listing(prefix, after)])[0])
            found |= page
            if more and after <= before:
                raise ProtocolError(f"S2 lists streams after {before!r} up to {after!r}, and says that more follow.")
        return found

    def few(self, prefix: str) -> dict[str, str]:
        """The same where they are at most a thousand; otherwise none."""
        page, _, more = _page(self._ask([_listing(prefix)])[0])
        return {} if more else page

    def named(self, names: Iterable[str]) -> dict[str, str]:
        """When each of these streams was made; those that are not there are left out. Makes none, whatever the basin
        does for those that are read.

        A page of the list answers for a thousand names where few others lie between them; the rest is asked for one by
        one, together.
        """
        left = sorted(set(names))
        found: dict[str, str] = {}
        while len(left) > PIPELINE:
            first, rest = self._ask([_listing(left[0], limit=1), _listing(beginning(left), left[0])])
            page, last, more = _page(rest)
            page |= _page(first)[0]
            behind = [name for name in left if name > last] if more else []
            found |= {name: page[name] for name in left if name in page}
            few = len(left) - len(behind) < PIPELINE
            left = behind
            if few:
                break
        # A name itself comes before all that go on from it.
        for name, answer in zip(left, self._ask([_listing(name, limit=1) for name in left]), strict=True):
            found |= {made: at for made, at in _page(answer)[0].items() if made == name}
        return found

    def tails(self, names: Sequence[str]) -> dict[str, int]:
        """The next position of each stream; those that are gone are left out. Only for streams that `streams` or
        `named` gave: a basin may be set to make a stream whose tail is asked for.
        """
        responses = self._ask([Request("GET", f"{path(name)}/tail") for name in names])
        found = {}
        for name, response in zip(names, responses, strict=True):
            try:
                tail = field(an_object(checked(response).body, "S2"), "tail", dict)
                found[name] = field(tail, "seq_num", int)
            except ApiError as error:
                if not error.is_gone:
                    raise
        return found

    def firsts(self, tails: Mapping[str, int]) -> dict[str, int]:
        """Of each stream the first position that it still holds, or its tail."""
        requests = [Request("GET", f"{path(name)}?seq_num=0&count=1", PROTO) for name in tails]
        found = {}
        for (name, tail), response in zip(tails.items(), self._ask(requests), strict=True):
            records = _one(response)
            found[name] = int(records.sequence[0]) if len(records) else tail
        return found

    def sizes(self, places: Sequence[tuple[str, int]], count: int) -> list[float]:
        """The average size of some records from each stream and position on; 0 where there are none."""
        requests = [Request("GET", f"{path(name)}?seq_num={at}&count={count}", PROTO) for name, at in places]
        return [len(response.body) / max(1, len(_one(response))) for response in self._ask(requests)]

    def at_time(self, stream: str, milliseconds: int) -> int | None:
        """The first position not older than a moment; None where all are."""
        request = Request("GET", f"{path(stream)}?timestamp={max(0, milliseconds)}&count=1", PROTO)
        records = _one(self._ask([request])[0])
        return int(records.sequence[0]) if len(records) else None

    def last(self, streams: Sequence[str]) -> dict[str, Last]:
        """How each stream ends; those that are not there are left out."""
        made = self.named(streams)
        tails = self.tails(list(made))
        held = [name for name, tail in tails.items() if tail]
        requests = [Request("GET", f"{path(name)}?seq_num={tails[name] - 1}&count=1", PROTO) for name in held]
        records = dict(zip(held, map(_one, self._ask(requests)), strict=True))
        nothing = wire.read_batch(b"")
        return {name: Last(tail, made[name], records.get(name, nothing)) for name, tail in tails.items()}

    def read_short(self, ranges: Sequence[tuple[str, int, int]]) -> list[Records]:
        """For each stream, start and count what one answer gives; nothing where there is anything odd."""
        paths = (f"{path(stream)}?seq_num={start}&count={count}" for stream, start, count in ranges)
        responses = self._ask([Request("GET", where, PROTO) for where in paths])
        return [wire.read_batch(response.body if response.status == 200 else b"") for response in responses]

    def read(self, stream: str, start: int, count: int) -> Iterator[Records]:
        """Records from a position on, as many as there are up to `count`, some thousand at a time."""
        headers = SESSION if self.options.compression == "none" else {
            **SESSION, "accept-encoding": self.options.compression,
        }  # fmt: skip
        connection = self.open()
        request = Request("GET", f"{path(stream)}?seq_num={start}&count={count}&wait=0", headers)
        response, body = connection.stream(request)
        if response.status == 416:  # nothing there
            return
        checked(response)
        frames, waiting, size, whole = wire.Deframer(), [], 0, False
        try:
            for piece in body:
                for frame in frames.feed(piece):
                    if frame.terminal:
                        failure = wire.failure(frame)
                        raise refused(failure.status, failure.answer)
                    waiting.append(frame.body)
                    size += len(frame.body)
                if size >= GATHER:
                    yield wire.read_batch(b"".join(waiting))
                    waiting, size = [], 0
            whole = True
        finally:
            if not whole:  # the rest of the answer is still to come, and nobody wants it
                self.drop()
        if waiting:
            yield wire.read_batch(b"".join(waiting))
        if not frames.complete:
            raise Disconnected(f"{connection} ended an answer in the middle of a frame")

    def make(self, stream: str, config: dict[str, object]) -> None:
        """Make a stream, unless it is there."""
        request = Request("PUT", f"/v1/streams/{quote(stream, safe='')}", JSON, json.dumps(config).encode())
        checked(self._ask([request])[0])

    def missing(self, stream: str, option: str) -> OptionError:
        """The error for a stream that is not there, which that option names, with those that are called alike."""
        try:
            names = self.streams("")
        except PenstockError:  # a token may well not allow to list them
            names = {}
        return OptionError(
            f"basin '{self.options.basin}' has no stream '{stream}'. {nearest(stream, names)} Check the options "
            f"'{option}' and 'basin'."
        )

    def _ask(self, requests: Sequence[Request]) -> list[Response]:
        answers: list[Response] = []
        while len(answers) < len(requests):
            connection = self.open()
            used = connection.used
            try:
                answers += connection.ask(requests[len(answers) :])
            except Disconnected:
                if not used:
                    raise
                # It was ended after what was asked before, or while it lay idle: a new one tells.
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
    """Of a page of the list: when each stream was made that is not being deleted, the last name, and whether more
    follow.
    """
    answer = an_object(checked(response).body, "S2")
    entries = {field(entry, "name", str): entry for entry in objects(answer, "streams")}
    made = {n: field(entry, "created_at", str) for n, entry in entries.items() if entry.get("deleted_at") is None}
    return made, max(entries, default=""), field(answer, "has_more", bool)


def beginning(names: Sequence[str]) -> str:
    """What all of them begin with."""
    low, high = min(names), max(names)
    return next((low[:i] for i, letter in enumerate(low) if high[i : i + 1] != letter), low)


def path(stream: str) -> str:
    """Where the records of a stream are."""
    return f"/v1/streams/{quote(stream, safe='')}/records"


def _one(response: Response) -> Records:
    """The records of a unary read; none where there is nothing at that place."""
    if response.status == 416:
        return wire.read_batch(b"")
    try:
        return wire.read_batch(checked(response).body)
    except ApiError as error:
        if error.is_gone:
            return wire.read_batch(b"")
        raise


def gaps(sequence: Ints, start: int) -> list[tuple[int, int]]:
    """The positions from `start` on that are jumped over, as first and next."""
    if not len(sequence):
        return []
    found = [(start, int(sequence[0]))] if sequence[0] > start else []
    if sequence[-1] - sequence[0] != len(sequence) - 1:
        at = np.flatnonzero(np.diff(sequence) > 1)
        found += [(int(sequence[i]) + 1, int(sequence[i + 1])) for i in at]
    return found
