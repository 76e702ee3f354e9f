"""The ledger: what it must not forget, what happens when it did, and what it tells of rows that moved."""

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from jetstream_sources import until
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StringType, StructField, StructType
from sink_writes import Stopped, batch, batches, bodies, commit, count, dies_after, stored, write

from nats_servers import Admin, server, server_binary
from penstock.connectors.jetstream import JetStream, ledger
from penstock.connectors.jetstream.sink import JetStreamSink
from penstock.errors import ConnectError, OptionError, PenstockError, ProtocolError
from penstock.kit.contract import Origin, Receipt
from penstock.spark.writing import Done
from penstock.testing.nats_server import NatsServer, free_port

WINDOW = 0.1
VALUE = StructType([StructField("value", BinaryType())])
AS_IT_MUST_BE = {"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True}


class Query:
    """A query that writes numbers to a stream of its own, with a ledger of its own."""

    def __init__(self, admin: Admin, url: str, stream: str, **config: Any):
        admin.create(stream, duplicate_window=int(WINDOW * 1e9), **config)
        self.admin, self.url, self.stream, self.ledger = admin, url, stream, f"{stream}L"
        self.options = {"subject": f"{stream}.x", "ledger": self.ledger}

    def write(self, number: int, rows: Any = None, partition: int = 0, **options: str) -> Receipt:
        """One partition of a batch, by default of ten rows that no other has."""
        start = 1000 * number + 100 * partition
        given = [batch(count(start, start + 10))] if rows is None else rows
        return write(self.url, given, Origin("q", number, partition), **self.options | options)

    def commit(self, number: int | None, *receipts: Receipt, **options: str) -> None:
        commit(self.url, receipts, number, **self.options | options)

    def run(self, *numbers: int, **options: str) -> None:
        """Whole batches."""
        for number in numbers:
            self.commit(number, self.write(number, **options), **options)

    def notes(self) -> list[str]:
        """What the ledger holds, without the names of ledger and query."""
        return sorted(subject.removeprefix(f"{self.ledger}.q.") for subject, _, _ in stored(self.admin, self.ledger))

    def numbers(self) -> list[int]:
        return [int(body) for body in bodies(self.admin, self.stream)]


def expected(*numbers: int) -> list[int]:
    return [1000 * number + i for number in numbers for i in range(10)]


@pytest.fixture
def query(admin: Admin, nats: NatsServer, stream: str) -> Query:
    return Query(admin, nats.url, stream)


def paste(admin: Admin, error: BaseException) -> None:
    """Do what the commands in an error's text would do."""
    done = 0
    for name, subject in re.findall(r"nats stream purge (\S+) --subject='(\S+)'", str(error)):
        admin.purge(name, filter=subject)
        done += 1
    for subject, body in re.findall(r"nats pub (\S+) '(.*?)'", str(error)):
        admin.publish([(subject, body.encode())])
        done += 1
    assert done, f"there is no command in: {error}"


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"max_age": 3600_000_000_000}, r"forgets notes after 3600s \(max_age\)"),
        ({"retention": "workqueue"}, "has workqueue retention, and forgets what is consumed"),
        ({"retention": "interest"}, "has interest retention"),
        ({"storage": "memory"}, "is kept in memory, and forgets all when its server restarts"),
        ({"sources": [{"name": "{stream}"}]}, "is fed by other streams"),
        ({"discard_new_per_subject": False}, "takes several messages on a subject"),
    ],
)
def test_a_ledger_that_would_forget_is_refused(query: Query, config: dict[str, Any], why: str) -> None:
    if "sources" in config:
        config = {"sources": [{"name": query.stream}]}
    query.admin.create(query.ledger, **AS_IT_MUST_BE | config)
    with pytest.raises(OptionError, match=rf"stream '{query.ledger}' cannot be the ledger: it {why}.*option 'ledger'"):
        query.write(0)
    assert query.numbers() == []


@pytest.mark.parametrize("how", ["deleted", "purged"])
@pytest.mark.parametrize("half", [True, False], ids=["in mid-batch", "between batches"])
def test_a_ledger_that_lost_its_notes_stops_the_query(query: Query, how: str, half: bool) -> None:
    query.run(0, 1)
    if half:
        with pytest.raises(Stopped):
            query.write(2, dies_after([batch(count(2000, 2005)), batch(count(2005, 2010))], 1))
    before = query.numbers()
    time.sleep(2 * WINDOW)
    query.admin.delete(query.ledger) if how == "deleted" else query.admin.purge(query.ledger)
    words = rf"ledger '{query.ledger}' has no note of this query, which has come to batch 2: .*nats pub \S+\.1\.done"
    for _ in range(2):
        with pytest.raises(OptionError, match=words) as refused:
            query.write(2)
    assert query.numbers() == before, "nothing is written"
    assert query.notes() == [], "and nothing is left that an attempt would have to be looked for"
    paste(query.admin, refused.value)
    query.run(2, 3)
    assert sorted(query.numbers()) == sorted(before + expected(2, 3)), "what is there twice, the user was told"


@pytest.mark.parametrize("before", [{"delivery": "at_least_once"}, {"ledger": "none"}])
def test_a_query_that_begins_to_write_exactly_once_is_asked_whether_it_may(query: Query, before: Any) -> None:
    query.run(0, 1, 2, **before)
    with pytest.raises(OptionError, match=r"come to batch 3: .* or the query did not write exactly once") as refused:
        query.write(3)
    paste(query.admin, refused.value)
    query.run(3)
    assert query.numbers() == expected(0, 1, 2, 3)


@pytest.mark.parametrize("batches", [1, 5], ids=["in batch 1", "in batch 5"])
def test_a_ledger_that_was_set_back_stops_the_query(query: Query, batches: int) -> None:
    """As a backup does it: the notes are those of an earlier batch, and rows of this one are stored already."""
    query.run(*range(batches))
    with pytest.raises(Stopped):
        query.write(batches, dies_after([batch(count(1000 * batches, 1000 * batches + 5)), batch([b"0"])], 1))
    before = query.numbers()
    time.sleep(2 * WINDOW)
    query.admin.purge(query.ledger)
    older = batches - 2
    if older >= 0:
        query.admin.publish([(f"{query.ledger}.q.{older}.done", b'{"batch": %d, "rows": {"0": 10}}' % older)])
    last = f"ends with batch {older}" if older >= 0 else "has no note"
    with pytest.raises(OptionError, match=rf"{last} of this query, which has come to batch {batches}: .*set back"):
        query.write(batches)
    assert query.numbers() == before


def test_a_checkpoint_that_was_set_back_is_written_again_after_what_the_error_says(query: Query) -> None:
    query.run(0, 1, 2, 3, 4)
    time.sleep(2 * WINDOW)
    with pytest.raises(ConnectError, match=r"batch 2 comes too late: batch 4 .* set back on purpose") as refused:
        query.write(2)
    paste(query.admin, refused.value)
    query.run(2, 3)
    assert query.numbers() == expected(0, 1, 2, 3, 4, 2, 3)


@pytest.mark.usefixtures("_at_once")
def test_a_stream_of_the_users_own_is_not_taken_for_the_ledger(query: Query) -> None:
    query.admin.create(query.ledger, f"{query.ledger}else.>")
    with pytest.raises(OptionError, match=rf"stream '{query.ledger}' cannot be the ledger: it does not take"):
        query.write(0)


@pytest.mark.parametrize("note", [b'{"batch": "2"}', b'{"batch": 2, "rows": []}', b"[]", b"2", b""])
def test_a_note_that_is_none_is_said(query: Query, note: bytes) -> None:
    query.run(0, 1)
    query.admin.publish([(f"{query.ledger}.q.2.done", note)])
    with pytest.raises(ProtocolError, match=rf"the note '{query.ledger}\.q\.2\.done' in the ledger is not what"):
        query.write(2)


def test_a_batch_without_rows_is_noted_too(query: Query) -> None:
    for number in range(3):
        query.commit(number, query.write(number, [batch([])]))
        assert query.notes() == [f"{number}.done"]
    query.run(3)
    assert query.numbers() == expected(3)


def test_without_notes_of_empty_batches_the_first_rows_of_a_query_would_be_refused(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof that the test above proves something."""
    with monkeypatch.context() as patch:
        patch.setattr(JetStreamSink, "has_ledger", False)
        for number in range(3):
            query.commit(number, query.write(number, [batch([])]))
    with pytest.raises(OptionError, match="has come to batch 3"):
        query.run(3)


@pytest.mark.parametrize("limit", [{"max_msgs": 1}, {"max_bytes": 100}], ids=str)
@pytest.mark.usefixtures("_at_once")
def test_a_full_ledger_is_said_at_once(query: Query, limit: dict[str, int]) -> None:
    query.admin.create(query.ledger, **AS_IT_MUST_BE, **limit)
    query.admin.publish([(f"{query.ledger}.other", b"x" * 20)])
    with pytest.raises(ConnectError, match=r"takes no note: .*maximum (messages|bytes) exceeded.* Raise its limits"):
        query.write(0)
    assert query.numbers() == []
    with pytest.raises(ConnectError, match=r"takes no note"):
        query.commit(0, Receipt(Origin("q", 0, 0), 0))


def test_a_note_between_others_that_is_gone_stops_nobody(query: Query) -> None:
    for _ in range(3):
        query.write(0)
    query.admin.purge(query.ledger, filter=f"{query.ledger}.q.0.0.1")
    query.write(0)
    assert query.notes() == ["0.0.0", "0.0.2", "0.0.3"]
    assert query.numbers() == expected(0)


# --- a single write ---


def ttl(admin: Admin, stream: str) -> list[bytes | None]:
    return [headers.get("Nats-TTL") for _, _, headers in stored(admin, stream)]


def test_the_notes_of_a_write_that_failed_go_away_by_themselves(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = Origin(Origin.single(), 0, 0)
    with pytest.raises(Stopped):
        write(query.url, dies_after(batches(3000), 1), origin, **query.options)
    write(query.url, batches(3000), origin, **query.options)  # a retry of the task, and no commit
    query.write(0)
    assert ttl(query.admin, query.ledger) == [b"720h", b"720h", None]
    monkeypatch.setattr(ledger, "MONTH", ledger.MONTH.replace(b"720h", b"1s"))
    write(query.url, batches(10), Origin(Origin.single(), 0, 0), **query.options)
    assert len(ttl(query.admin, query.ledger)) == 4
    until(lambda: ttl(query.admin, query.ledger) == [b"720h", b"720h", None])
    assert len(query.numbers()) == 3020


def test_a_write_without_rows_needs_no_ledger(query: Query) -> None:
    query.commit(None, write(query.url, [batch([])], Origin(Origin.single(), 0, 0), **query.options))
    assert query.admin.calls.streams([query.ledger]) == {query.ledger: None}


def test_a_ledger_that_lets_no_note_go_is_used_as_it_is(query: Query) -> None:
    query.admin.create(query.ledger, **AS_IT_MUST_BE)
    write(query.url, batches(10), Origin(Origin.single(), 0, 0), **query.options)
    assert ttl(query.admin, query.ledger) == [None]


def test_an_old_server_has_a_ledger_too(folder: Path) -> None:
    with server(folder, executable=server_binary("2.10.26")) as (running, admin):
        query = Query(admin, running.url, "S")
        write(query.url, batches(10), Origin(Origin.single(), 0, 0), **query.options)
        query.run(0, 1, 2)
        assert len(query.numbers()) == 40


# --- rows that moved ---


def test_rows_that_moved_to_another_partition_of_a_batch_that_was_done_are_refused(query: Query) -> None:
    query.run(0)
    query.commit(1, *(query.write(1, partition=p) for p in (0, 1)))
    before = query.numbers()
    rows = [batch(count(1100, 1110))]
    with pytest.raises(ProtocolError, match=r"partition 2 of batch 1 was written before with other rows: there were 0"):
        query.write(1, rows, partition=2)
    receipt = query.write(1, [batch(count(1000, 1010))])
    with pytest.raises(ProtocolError, match=r"partition 1 of batch 1 .* had rows then and has none now"):
        query.commit(1, receipt, query.write(1, [batch([])], partition=1))
    assert query.numbers() == before


@pytest.mark.parametrize("single", [False, True], ids=["stream", "df.write"])
def test_rows_that_moved_to_another_partition_in_mid_batch_are_refused_at_the_commit(
    query: Query, single: bool
) -> None:
    name, number = (Origin.single(), None) if single else ("q", 0)
    with pytest.raises(Stopped):
        write(query.url, dies_after(batches(2000), 1), Origin(name, 0, 1), **query.options)
    moved = write(query.url, batches(2000), Origin(name, 0, 2), **query.options)
    words = r"partition 1 of batch 0 was written before with other rows: it had rows then and has none now.*rand, now"
    for _ in range(2):
        with pytest.raises(ProtocolError, match=words):
            query.commit(number, moved)
    again = write(query.url, batches(2000), Origin(name, 0, 1), **query.options)
    query.commit(number, moved, again)
    assert (f"{name}.0.done" in " ".join(query.notes())) is False


@pytest.mark.parametrize("done", [False, True])
def test_a_batch_whose_rows_cannot_be_asked_for_again_is_replayed_empty(query: Query, done: bool) -> None:
    """Core NATS and shared durables hold what arrived in the driver: after a crash in mid-batch it is there no more."""
    query.run(0)
    if done:
        query.commit(1, *(query.write(1, partition=p) for p in (0, 1)))
    else:
        with pytest.raises(Stopped):
            query.write(1, dies_after(batches(2000), 1), partition=1)
    query.commit(1, *(query.write(1, [batch([])], partition=p) for p in (0, 1)))
    query.run(2)


def test_rows_with_ids_of_their_own_may_move(query: Query) -> None:
    rows = [
        batch(count(5 * i, 5 * i + 5), id=pa.array([f"order-{n}" for n in range(5 * i, 5 * i + 5)])) for i in (0, 1)
    ]
    with pytest.raises(Stopped):
        query.write(0, dies_after(rows, 1), partition=1)
    receipt = query.write(0, rows, partition=2)
    sink: Any = JetStream.open_sink(JetStream.parse_sink({"servers": query.url, **query.options}), rows[0].schema)
    with closing(sink):
        sink.commit([receipt], 0)
    assert query.numbers() == list(range(10))


# --- a server that is away ---


@pytest.fixture
def own(folder: Path) -> Iterator[tuple[NatsServer, Query]]:
    with server(folder) as (running, admin):
        yield running, Query(admin, running.url, "S")


def test_a_commit_waits_for_a_server_that_is_away(own: tuple[NatsServer, Query]) -> None:
    running, query = own
    done = [Done(query.write(0))]
    writer = JetStream({"servers": running.url, **query.options}).streamWriter(VALUE, overwrite=False)
    running.kill()
    back = threading.Timer(2, running.start)
    back.start()
    try:
        writer.commit(done, 0)
    finally:
        back.join()
    with closing(Admin(running.url)) as admin:
        query.admin = admin
        assert query.notes() == ["0.done"]


def test_a_commit_gives_up_after_the_time_that_was_given(own: tuple[NatsServer, Query]) -> None:
    running, query = own
    done = [Done(query.write(0))]
    options = {"servers": running.url, "reconnectTimeout": "1s", **query.options}
    writer = JetStream(options).streamWriter(VALUE, overwrite=False)
    running.kill()
    before = time.monotonic()
    with pytest.raises(PenstockError, match=r"finishing a batch failed \d+ times in 1s: no NATS server answers"):
        writer.commit(done, 0)
    assert 0.9 < time.monotonic() - before < 4


@pytest.mark.parametrize("batch_number", [0, 1])
@pytest.mark.usefixtures("_at_once")
def test_a_wrong_address_is_told_at_once(batch_number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has never reached the server does not wait for it: neither df.write nor the first batches of a query."""
    connector = JetStream({"servers": f"nats://127.0.0.1:{free_port()}", "subject": "a"})
    local = {"sql.streaming.queryId": "q", "streaming.sql.batchId": str(batch_number)}
    task = SimpleNamespace(getLocalProperty=local.get, partitionId=lambda: 0)
    monkeypatch.setattr(TaskContext, "get", lambda: task)
    words = r"no NATS server answers \(127\.0\.0\.1:\d+: Connection refused\)\. Check the option 'servers'"
    with pytest.raises(ConnectError, match=words):
        connector.writer(VALUE, overwrite=False)
    with pytest.raises(ConnectError, match=words):
        connector.streamWriter(VALUE, overwrite=False).write(iter([batch([b"a"])]))


def test_a_server_without_jetstream_is_told_at_once(folder: Path) -> None:
    with NatsServer(folder, config="# no JetStream") as running:
        connector = JetStream({"servers": running.url, "subject": "a"})
        with pytest.raises(ConnectError, match=r"JetStream does not answer on '\$JS.API': it is not enabled"):
            connector.writer(VALUE, overwrite=False)


def test_a_subject_that_no_stream_takes_is_told_before_any_task(query: Query) -> None:
    options = {"servers": query.url, "subject": f"{query.stream}x.y"}
    with pytest.raises(OptionError, match=r"no stream takes the subject '\w+x\.y'.* Where the account maps subjects"):
        JetStream(options).writer(VALUE, overwrite=False)
    with_subject = StructType([*VALUE.fields, StructField("subject", StringType())])
    JetStream(options).writer(with_subject, overwrite=False)
    JetStream(options | {"subject": "{value}"}).writer(StructType([StructField("value", StringType())]), False)


def test_notes_are_those_of_0_2(query: Query) -> None:
    """A query that an earlier version began must find its notes."""
    query.run(0)
    query.write(1)
    notes = {subject.removeprefix(f"{query.ledger}.q."): json.loads(body) for subject, body in held(query)}
    assert notes["0.done"] == {"batch": 0, "rows": {"0": 10}}
    assert notes["1.0.0"].keys() == {"last", "lives"}
    assert notes["1.0.0"]["last"].keys() == {query.stream}
    query.admin.purge(query.ledger)
    query.admin.publish([(f"{query.ledger}.q.4.done", b'{"batch": 4, "rows": {"0": 10}}')])
    query.run(5)
    assert query.numbers()[-10:] == expected(5)


def held(query: Query) -> list[tuple[str, bytes]]:
    return [(subject, body) for subject, body, _ in stored(query.admin, query.ledger)]
