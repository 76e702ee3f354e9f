"""Somebody edits the subjects of a stream under a query: it reads and releases what it was asked for, nothing else."""

from typing import Any

import pyarrow as pa
import pytest
from jetstream_sources import Query, consumers, everything, numbers, once, opened, table, until

from nats_servers import Admin
from penstock.connectors.jetstream import JetStream
from penstock.errors import OptionError
from penstock.kit.contract import Predicate
from penstock.testing.nats_server import NatsServer

WAYS = [("limits", "consumer"), ("limits", "direct"), ("limits", "auto"), ("workqueue", "auto")]


def make(admin: Admin, stream: str, retention: str) -> None:
    """60 messages: even numbers on jobs.a, odd ones on jobs.b."""
    admin.create(stream, f"{stream}.a.>", f"{stream}.b.>", retention=retention)
    admin.publish((f"{stream}.{'ab'[i % 2]}.x", str(i).encode()) for i in range(60))


def edit(admin: Admin, stream: str, *subjects: str) -> None:
    config = admin.calls.call(f"STREAM.INFO.{stream}")["config"]
    admin.calls.call(f"STREAM.UPDATE.{stream}", config | {"subjects": list(subjects)})


def stored(admin: Admin, stream: str) -> list[int]:
    """The bodies that the stream still has."""
    found, at = [], 1
    while (message := admin.calls.first_from(stream, at)) is not None:
        found.append(int(message.body))
        at = message.sequence + 1
    return found


@pytest.mark.parametrize(("retention", "engine"), WAYS)
@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("filters", ["a.>", "a.>,c.>"])
def test_an_edited_stream_gives_no_row_of_other_subjects_and_loses_none_of_them(
    admin: Admin, nats: NatsServer, stream: str, retention: str, engine: str, stopped: bool, filters: str
) -> None:
    make(admin, stream, retention)
    subjects = ",".join(f"{stream}.{text}" for text in filters.split(","))
    if "c" in filters:
        edit(admin, stream, f"{stream}.a.>", f"{stream}.b.>", f"{stream}.c.>")
    options: dict[str, Any] = {"stream": stream, "subjects": subjects, "readEngine": engine, "minPartitions": 3}
    with opened(nats.url, **options) as source:
        query = Query(source)
        read = numbers(query.batch(10) or pa.table({"value": []}))
        source.commit(query.offsets)
        edit(admin, stream, f"{stream}.b.>")
        admin.publish((f"{stream}.b.x", str(i).encode()) for i in range(61, 81, 2))
        if not stopped:
            read += [n for rows in query.run() for n in numbers(rows)]
            source.commit(query.offsets)
    if stopped:
        with opened(nats.url, **options) as source:
            source.check()  # what the user's .load() does, before anybody knows of the checkpoint
        with opened(nats.url, **options) as source:
            query = Query(source, at=query.at)
            read += [n for rows in query.run() for n in numbers(rows)]
            source.commit(query.offsets)
    assert read == list(range(0, 60, 2))
    kept = stored(admin, stream)
    assert [n for n in kept if n % 2] == list(range(1, 80, 2)), "nobody else's messages are destroyed"
    assert [n for n in kept if n % 2 == 0] == ([] if retention == "workqueue" else list(range(0, 60, 2)))
    until(lambda: consumers(admin, stream) == (retention == "workqueue"))


@pytest.mark.parametrize("engine", ["consumer", "direct"])
def test_an_edited_stream_is_read_whole_by_a_batch(admin: Admin, nats: NatsServer, stream: str, engine: str) -> None:
    make(admin, stream, "limits")
    edit(admin, stream, f"{stream}.b.>")
    rows = everything(nats.url, stream, subjects=f"{stream}.a.>", readEngine=engine)
    assert numbers(rows) == list(range(0, 60, 2))
    options = JetStream.parse({"servers": nats.url, "stream": stream, "readEngine": engine})
    narrowed = JetStream.narrow(options, [Predicate("subject", "startswith", f"{stream}.a.")])
    source: Any = JetStream.open_source(narrowed)
    assert numbers(table(source, *(span for task in once(source) for span in task))) == list(range(0, 60, 2))
    source.close()


@pytest.mark.parametrize("search", ["subjects", "streamPattern"])
@pytest.mark.parametrize("stopped", [False, True])
def test_a_stream_that_was_found_by_its_subjects_is_read_on_when_it_lists_them_no_more(
    admin: Admin, nats: NatsServer, stream: str, search: str, stopped: bool
) -> None:
    make(admin, stream, "limits")
    admin.create(f"{stream}_other", f"{stream}.a")
    options = {"subjects": f"{stream}.a.>,{stream}.a", "discoveryInterval": "1ms"}
    if search == "streamPattern":
        options["streamPattern"] = f"{stream}(_other)?"
    with opened(nats.url, **options) as source:
        query = Query(source)
        read = numbers(query.batch(10) or pa.table({"value": []}))
        edit(admin, stream, f"{stream}.b.>")
        if not stopped:
            read += [n for rows in query.run() for n in numbers(rows)]
    if stopped:
        with opened(nats.url, **options) as source:
            query = Query(source, at=query.at)
            query.plan.freeze()
            read += [n for rows in query.run() for n in numbers(rows)]
    assert read == list(range(0, 60, 2))


def test_a_filter_that_matches_neither_what_is_listed_nor_what_is_stored_is_refused(
    admin: Admin, nats: NatsServer, stream: str
) -> None:
    make(admin, stream, "limits")
    edit(admin, stream, f"{stream}.b.>")
    admin.purge(stream, filter=f"{stream}.a.>")
    with (
        opened(nats.url, stream=stream, subjects=f"{stream}.a.>") as source,
        pytest.raises(
            OptionError, match=rf"no message can match '{stream}\.a\.>': .* takes {stream}\.b\.>, and none is stored"
        ),
    ):
        source.check()


def test_a_running_query_whose_subjects_nothing_can_match_any_more_waits(
    admin: Admin, nats: NatsServer, stream: str
) -> None:
    make(admin, stream, "workqueue")
    with opened(nats.url, stream=stream, subjects=f"{stream}.a.>") as source:
        query = Query(source)
        query.run()
        source.commit(query.offsets)
        edit(admin, stream, f"{stream}.b.>")
        admin.publish([(f"{stream}.b.x", b"61")])
        assert [rows.num_rows for rows in query.run()] == [0]
        edit(admin, stream, f"{stream}.a.>", f"{stream}.b.>")
        admin.publish([(f"{stream}.a.x", b"62")])
        assert [n for rows in query.run() for n in numbers(rows)] == [62]
