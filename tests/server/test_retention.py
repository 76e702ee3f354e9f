"""Streams that forget what was consumed, and the durable that shows how far a query is."""

import logging
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from jetstream_sources import Query, consumers, everything, numbers, once, opened, sequences, table, whole

from nats_servers import Admin, server, server_binary
from penstock.clients.nats.client import Denied
from penstock.errors import ConnectError, DataLossError, OptionError
from penstock.planning.positions import Position, Range
from penstock.testing.nats_server import NatsServer


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NatsServer, Admin]]:
    """A server from before CONSUMER.RESET."""
    with server(tmp_path_factory.mktemp("old"), executable=server_binary("2.12.8")) as both:
        yield both


def left(admin: Admin, stream: str) -> list[int]:
    """The sequences that the stream still has."""
    info = admin.calls.stream(stream)
    found, at = [], info.first
    while (message := admin.calls.first_from(stream, at)) is not None:
        found.append(message.sequence)
        at = message.sequence + 1
    return found


@pytest.fixture
def queue(admin: Admin, stream: str) -> str:
    """A work queue of 60 messages: odd sequences on .a, even ones on .b."""
    admin.create(stream, retention="workqueue")
    admin.publish((f"{stream}.{'ab'[i % 2]}", str(i).encode()) for i in range(60))
    return stream


def test_reading_a_work_queue_consumes_nothing(admin: Admin, nats: NatsServer, queue: str) -> None:
    for _ in range(2):
        assert numbers(everything(nats.url, queue)) == list(range(60))
    assert left(admin, queue) == list(range(1, 61))
    assert consumers(admin, queue) == 0


def test_a_commit_releases_exactly_what_lies_before_it(admin: Admin, nats: NatsServer, queue: str) -> None:
    with opened(nats.url, stream=queue) as source:
        query = Query(source)
        assert left(admin, queue) == list(range(1, 61))
        query.batch(25)
        assert left(admin, queue) == list(range(1, 61)), "planning the next batch is no commit"
        source.commit(query.offsets)
        assert left(admin, queue) == list(range(26, 61))
        source.commit(query.offsets)
        assert left(admin, queue) == list(range(26, 61)), "a commit may come twice"
        assert numbers(pa.concat_tables(query.run())) == list(range(25, 60))
        source.commit(query.offsets)
        assert left(admin, queue) == []
        admin.numbers(queue, 3, start=60)
        assert numbers(pa.concat_tables(query.run())) == [60, 61, 62]


@pytest.mark.parametrize("filters", ["a", "b", "a,b"])
def test_a_commit_with_filters_releases_only_what_they_match(
    admin: Admin, nats: NatsServer, queue: str, filters: str
) -> None:
    with opened(nats.url, stream=queue, subjects=",".join(f"{queue}.{text}" for text in filters.split(","))) as source:
        query = Query(source)
        rows = query.batch(10)
        assert rows is not None
        source.commit(query.offsets)
        end = query.at["next"][queue]
    assert sequences(rows) == [s for s in range(1, end) if "ba"[s % 2] in filters]
    assert left(admin, queue) == [s for s in range(1, 61) if s >= end or "ba"[s % 2] not in filters]


def test_a_query_on_a_work_queue_goes_on_after_a_restart(admin: Admin, nats: NatsServer, queue: str) -> None:
    with opened(nats.url, stream=queue) as source:
        query = Query(source)
        start, end = query.at, query.step(20)
        tasks = query.plan.tasks(start, end)
        assert numbers(table(source, *tasks[0])) == list(range(20))
    with opened(nats.url, stream=queue) as source:
        again = Query(source, at=start)
        assert again.plan.tasks(start, end) == tasks
        assert numbers(table(source, *tasks[0])) == list(range(20)), "not committed, so still there"
        again.at = end
        source.commit(again.offsets)
        assert numbers(pa.concat_tables(again.run())) == list(range(20, 60))


@pytest.mark.parametrize(("config", "asked"), [({}, ""), ({"filter_subject": "{s}.a"}, ""), ({}, "{s}.b")])
def test_a_work_queue_with_a_consumer_for_the_same_messages_is_refused_by_its_name(
    admin: Admin, nats: NatsServer, queue: str, config: dict[str, str], asked: str
) -> None:
    body = {key: text.format(s=queue) for key, text in config.items()}
    body |= {"durable_name": "billing", "ack_policy": "explicit"}
    admin.calls.call(f"CONSUMER.CREATE.{queue}.billing", {"stream_name": queue, "config": body})
    with (
        opened(nats.url, stream=queue, subjects=asked.format(s=queue)) as source,
        pytest.raises(OptionError, match=rf"work-queue stream '{queue}' has the consumer 'billing' for the same"),
    ):
        Query(source)


def test_a_work_queue_with_a_consumer_for_other_messages_is_read(admin: Admin, nats: NatsServer, queue: str) -> None:
    body = {"durable_name": "billing", "ack_policy": "explicit", "filter_subject": f"{queue}.a"}
    admin.calls.call(f"CONSUMER.CREATE.{queue}.billing", {"stream_name": queue, "config": body})
    with opened(nats.url, stream=queue, subjects=f"{queue}.b") as source:
        query = Query(source)
        assert numbers(pa.concat_tables(query.run())) == list(range(1, 60, 2))
        source.commit(query.offsets)
    assert left(admin, queue) == list(range(1, 61, 2))


def test_a_work_queue_that_denies_purging_is_refused(admin: Admin, nats: NatsServer, stream: str) -> None:
    admin.create(stream, retention="workqueue", deny_purge=True)
    with (
        opened(nats.url, stream=stream) as source,
        pytest.raises(OptionError, match=rf"work-queue stream '{stream}' denies purging.*or read a mirror of it"),
    ):
        Query(source)


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_a_consumer_is_refused_where_it_would_remove_what_it_reads(
    admin: Admin, nats: NatsServer, stream: str, retention: str
) -> None:
    admin.create(stream, retention=retention)
    with (
        opened(nats.url, stream=stream, readEngine="consumer", progressConsumer="p") as source,
        pytest.raises(OptionError, match=rf"'{stream}' has {retention} retention: a consumer would remove what it"),
    ):
        source.bounds()


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_a_stream_that_forgets_is_refused_where_it_does_not_allow_direct_get(
    admin: Admin, nats: NatsServer, stream: str, retention: str
) -> None:
    admin.create(stream, retention=retention, allow_direct=False)
    with (
        opened(nats.url, stream=stream, progressConsumer="p") as source,
        pytest.raises(OptionError, match=rf"which the stream does not allow. Allow it: nats stream edit {stream} "),
    ):
        source.bounds()


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_a_batch_read_releases_nothing_and_so_needs_nothing(
    admin: Admin, nats: NatsServer, stream: str, retention: str
) -> None:
    """Somebody else works on the stream; looking at it does not disturb them."""
    admin.create(stream, retention=retention)
    body = {"durable_name": "billing", "ack_policy": "explicit"}
    admin.calls.call(f"CONSUMER.CREATE.{stream}.billing", {"stream_name": stream, "config": body})
    admin.numbers(stream, 10)
    with opened(nats.url, stream=stream) as source:
        assert numbers(table(source, *(span for task in once(source) for span in task))) == list(range(10))
    assert left(admin, stream) == list(range(1, 11))


def test_a_commit_of_a_stream_that_was_made_again_releases_nothing_of_the_new_one(
    admin: Admin, nats: NatsServer, queue: str
) -> None:
    with opened(nats.url, stream=queue, failOnDataLoss="false") as source:
        query = Query(source)
        query.run()
        before = query.offsets
        admin.delete(queue)
        admin.create(queue, retention="workqueue")
        admin.numbers(queue, 10)
        query.step()
        source.commit(before)
        assert numbers(pa.concat_tables(query.run())) == list(range(10))


def test_a_consumer_that_is_not_ours_is_not_moved(
    admin: Admin, nats: NatsServer, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    admin.create(stream)
    admin.numbers(stream, 20)
    body = {"durable_name": "billing", "ack_policy": "explicit"}
    admin.calls.call(f"CONSUMER.CREATE.{stream}.billing", {"stream_name": stream, "config": body})
    with opened(nats.url, stream=stream, progressConsumer="billing") as source:
        Query(source).run()
    assert admin.calls.call(f"CONSUMER.INFO.{stream}.billing")["num_pending"] == 20
    assert "that is not Penstock's" in caplog.text


def test_an_interest_stream_whose_consumer_cannot_be_made_is_refused(
    admin: Admin, nats: NatsServer, stream: str
) -> None:
    admin.create(stream, retention="interest", max_consumers=1)
    admin.calls.call(
        f"CONSUMER.CREATE.{stream}.other",
        {"stream_name": stream, "config": {"durable_name": "other", "ack_policy": "explicit"}},
    )
    with (
        opened(nats.url, stream=stream, progressConsumer="p") as source,
        pytest.raises(ConnectError, match="consumers"),
    ):
        Query(source)


def test_an_interest_stream_needs_a_progress_consumer(admin: Admin, nats: NatsServer, stream: str) -> None:
    admin.create(stream, retention="interest")
    with (
        opened(nats.url, stream=stream) as source,
        pytest.raises(OptionError, match=rf"'{stream}' has interest retention and forgets .* Set progressConsumer"),
    ):
        Query(source)


def test_an_interest_stream_keeps_messages_until_the_query_commits(admin: Admin, nats: NatsServer, stream: str) -> None:
    admin.create(stream, retention="interest")
    admin.numbers(stream, 5)
    assert left(admin, stream) == [], "nobody is interested yet"
    with opened(nats.url, stream=stream, progressConsumer="spark") as source:
        query = Query(source)
        admin.numbers(stream, 50, start=5)
        assert left(admin, stream) == list(range(6, 56))
        rows = query.batch(20)
        assert rows is not None
        assert numbers(rows) == list(range(5, 25))
        query.step()
        assert left(admin, stream) == list(range(6, 56)), "reading and planning release nothing"
        source.commit(query.offsets)
        assert left(admin, stream) == list(range(26, 56))
        source.commit(query.offsets)
        assert left(admin, stream) == list(range(26, 56))
        assert numbers(pa.concat_tables(query.run())) == list(range(25, 55))
        source.commit(query.offsets)
        assert left(admin, stream) == []
        admin.numbers(stream, 4, start=55)
        assert left(admin, stream) == list(range(56, 60))
        at = query.at
    with opened(nats.url, stream=stream, progressConsumer="spark") as source:
        query = Query(source, at=at)
        assert numbers(pa.concat_tables(query.run())) == list(range(55, 59))
        assert left(admin, stream) == list(range(56, 60))


def test_a_restarted_query_makes_sure_that_an_interest_stream_keeps_its_messages(
    admin: Admin, nats: NatsServer, stream: str
) -> None:
    """Its durable was deleted while it was down: without it the stream would drop whatever comes."""
    admin.create(stream, retention="interest")
    with opened(nats.url, stream=stream, progressConsumer="spark") as source:
        at = Query(source).at
    admin.calls.call(f"CONSUMER.DELETE.{stream}.spark")
    with opened(nats.url, stream=stream, progressConsumer="spark") as source:
        plan = Query(source, at=at).plan
        for _ in range(3):  # as Spark does: it asks for the end of the next batch, and nothing else
            assert plan.next(at, None) == at
            plan.look(now=True)
        admin.numbers(stream, 5)
        assert left(admin, stream) == [1, 2, 3, 4, 5]


GONE = r"its consumer .spark., which keeps messages for the query at 21, was deleted, .*: 10 of the 10 messages .* gone"


@pytest.fixture
def kept(admin: Admin, nats: NatsServer, stream: str) -> tuple[str, dict[str, Any]]:
    """An interest stream of 20 messages, and the checkpoint of a query that has read and committed them."""
    admin.create(stream, retention="interest")
    with opened(nats.url, stream=stream, progressConsumer="spark") as source:
        query = Query(source)
        admin.numbers(stream, 20)
        query.run()
        source.commit(query.offsets)
        return stream, query.at


@pytest.mark.parametrize("again", [False, True])
def test_what_an_interest_stream_dropped_while_the_query_was_down_is_loss(
    admin: Admin, nats: NatsServer, kept: tuple[str, dict[str, Any]], again: bool, caplog: pytest.LogCaptureFixture
) -> None:
    stream, at = kept
    config = admin.calls.call(f"CONSUMER.INFO.{stream}.spark")["config"]
    admin.calls.call(f"CONSUMER.DELETE.{stream}.spark")
    admin.numbers(stream, 10, start=20)
    if again:  # somebody makes it again, as it was
        admin.calls.call(f"CONSUMER.CREATE.{stream}.spark", {"stream_name": stream, "config": config})
    for _ in range(2):
        with opened(nats.url, stream=stream, progressConsumer="spark") as source:
            query = Query(source, at=at)
            with pytest.raises(DataLossError, match=GONE):
                query.step()
    with opened(nats.url, stream=stream, progressConsumer="spark", failOnDataLoss="false") as source:
        query = Query(source, at=at)
        query.step()
        admin.numbers(stream, 3, start=30)
        assert [n for rows in query.run() for n in numbers(rows)] == [30, 31, 32]
    assert caplog.text.count("failOnDataLoss=false, going on") == 1


@pytest.mark.parametrize("commits", [False, True])
def test_what_an_interest_stream_drops_while_the_query_runs_is_loss(
    admin: Admin, nats: NatsServer, kept: tuple[str, dict[str, Any]], commits: bool
) -> None:
    stream, at = kept
    with opened(nats.url, stream=stream, progressConsumer="spark") as source:
        query = Query(source, at=at)
        query.step()
        admin.calls.call(f"CONSUMER.DELETE.{stream}.spark")
        admin.numbers(stream, 10, start=20)
        if commits:  # which makes the durable again
            source.commit(query.offsets)
        with pytest.raises(DataLossError, match=GONE):
            query.step()


def test_what_an_interest_stream_drops_between_a_plan_and_its_reading_is_loss(
    admin: Admin, nats: NatsServer, kept: tuple[str, dict[str, Any]]
) -> None:
    stream, at = kept
    with opened(nats.url, stream=stream, progressConsumer="spark") as source:
        query = Query(source, at=at)
        admin.numbers(stream, 10, start=20)
        start, end = query.at, query.step()
        admin.calls.call(f"CONSUMER.DELETE.{stream}.spark")
        assert not len(table(source, *(span for task in query.plan.tasks(start, end) for span in task)))
        source.commit(query.offsets)
        query.at = end
        with pytest.raises(DataLossError, match="messages after 20, was deleted while the query read: some of them"):
            query.step()


@pytest.mark.parametrize("restarted", [False, True])
def test_an_interest_stream_that_was_made_again_is_told_as_that_and_keeps_its_messages(
    admin: Admin, nats: NatsServer, kept: tuple[str, dict[str, Any]], restarted: bool
) -> None:
    stream, at = kept

    def again() -> None:
        admin.delete(stream)
        admin.create(stream, retention="interest")

    options = {"stream": stream, "progressConsumer": "spark"}
    with opened(nats.url, **options) as source:
        query = Query(source, at=at)
        if not restarted:
            query.step()
        again()
        with pytest.raises(DataLossError, match="was deleted and made again"):
            query.step()
    again()
    with opened(nats.url, **options, failOnDataLoss="false") as source:
        query = Query(source, at=at)
        query.step()
        admin.numbers(stream, 5)
        assert [n for rows in query.run() for n in numbers(rows)] == [0, 1, 2, 3, 4]


def test_a_durable_that_was_deleted_while_nothing_came_is_no_loss(
    admin: Admin, nats: NatsServer, kept: tuple[str, dict[str, Any]]
) -> None:
    stream, at = kept
    admin.calls.call(f"CONSUMER.DELETE.{stream}.spark")
    with opened(nats.url, stream=stream, progressConsumer="spark") as source:
        query = Query(source, at=at)
        query.step()
        admin.calls.call(f"CONSUMER.DELETE.{stream}.spark")
        source.commit(query.offsets)
        admin.numbers(stream, 5, start=20)
        assert [n for rows in query.run() for n in numbers(rows)] == [20, 21, 22, 23, 24]


def test_a_durable_that_was_deleted_while_others_kept_all_messages_is_no_loss(
    admin: Admin, nats: NatsServer, kept: tuple[str, dict[str, Any]]
) -> None:
    stream, at = kept
    body = {"durable_name": "other", "ack_policy": "explicit"}
    admin.calls.call(f"CONSUMER.CREATE.{stream}.other", {"stream_name": stream, "config": body})
    admin.calls.call(f"CONSUMER.DELETE.{stream}.spark")
    admin.numbers(stream, 5, start=20)
    with opened(nats.url, stream=stream, progressConsumer="spark") as source:
        assert [n for rows in Query(source, at=at).run() for n in numbers(rows)] == [20, 21, 22, 23, 24]


def test_an_interest_stream_keeps_what_another_consumer_has_not_acknowledged(
    admin: Admin, nats: NatsServer, stream: str
) -> None:
    admin.create(stream, retention="interest")
    body = {"durable_name": "other", "ack_policy": "explicit"}
    admin.calls.call(f"CONSUMER.CREATE.{stream}.other", {"stream_name": stream, "config": body})
    with opened(nats.url, stream=stream, progressConsumer="spark") as source:
        query = Query(source)
        admin.numbers(stream, 10)
        assert numbers(pa.concat_tables(query.run())) == list(range(10))
        source.commit(query.offsets)
    assert left(admin, stream) == list(range(1, 11))


def test_an_interest_stream_on_an_old_server_is_refused(old: tuple[NatsServer, Admin], stream: str) -> None:
    running, admin = old
    admin.create(stream, retention="interest")
    with (
        opened(running.url, stream=stream, progressConsumer="spark") as source,
        pytest.raises(
            OptionError, match=rf"'{stream}' has interest retention: releasing .* 2\.14, and this is 2\.12\.8"
        ),
    ):
        Query(source)


def progress(admin: Admin, stream: str) -> dict[str, Any]:
    return admin.calls.call(f"CONSUMER.INFO.{stream}.spark")


@pytest.mark.parametrize("age", ["new", "old"])
@pytest.mark.parametrize("filtered", [False, True])
def test_the_progress_consumer_shows_where_the_query_stands(
    admin: Admin, nats: NatsServer, old: tuple[NatsServer, Admin], stream: str, age: str, filtered: bool
) -> None:
    running, boss = (nats, admin) if age == "new" else old
    boss.create(stream)
    boss.publish((f"{stream}.{'ab'[i % 2]}", str(i).encode()) for i in range(100))
    options = {"subjects": f"{stream}.a"} if filtered else {}
    with opened(running.url, stream=stream, progressConsumer="spark", **options) as source:
        query = Query(source)
        assert progress(boss, stream)["num_pending"] == (50 if filtered else 100)
        for at, pending in ((31, 70), (51, 50), (101, 0), (41, 60), (1, 100)):
            source.progress({stream: Position(at, query.offsets[stream].epoch)})
            info = progress(boss, stream)
            assert info["num_pending"] == (pending // 2 if filtered else pending)
            assert info["delivered"]["stream_seq"] == at - 1
            # A server of 2.12 shows no floor of a consumer that has delivered nothing.
            assert info["ack_floor"]["stream_seq"] == (at - 1 if age == "new" else 0)
            assert info["num_ack_pending"] == 0
        assert info["config"]["durable_name"] == "spark"
        assert "Penstock" in info["config"]["description"]
        assert info["config"].get("filter_subject") == options.get("subjects")
        query.run()
    assert progress(boss, stream)["num_pending"] == 0
    assert consumers(boss, stream) == 1


@pytest.mark.parametrize("age", ["new", "old"])
def test_a_progress_consumer_that_was_deleted_is_made_again(
    admin: Admin, nats: NatsServer, old: tuple[NatsServer, Admin], stream: str, age: str
) -> None:
    running, boss = (nats, admin) if age == "new" else old
    boss.create(stream)
    boss.numbers(stream, 100)
    with opened(running.url, stream=stream, progressConsumer="spark") as source:
        query = Query(source)
        query.batch(30)
        boss.calls.call(f"CONSUMER.DELETE.{stream}.spark")
        query.batch(30)
        assert progress(boss, stream)["num_pending"] == 70


def test_two_streams_have_a_progress_consumer_each(admin: Admin, nats: NatsServer, stream: str) -> None:
    for name in (f"{stream}A", f"{stream}B"):
        admin.create(name)
        admin.numbers(name, 10)
    with opened(nats.url, stream=f"{stream}A,{stream}B", progressConsumer="spark") as source:
        query = Query(source)
        source.progress(
            {name: query.offsets[name]._replace(next=at) for name, at in ((f"{stream}A", 4), (f"{stream}B", 9))}
        )
    assert progress(admin, f"{stream}A")["num_pending"] == 7
    assert progress(admin, f"{stream}B")["num_pending"] == 2


ACCOUNTS = """
jetstream {{ store_dir: "{store}" }}
accounts {{ A {{ jetstream: enabled, users: [
  {{ user: admin, password: a }},
  {{ user: reader, password: r, permissions: {{
    publish: [ "$JS.API.STREAM.INFO.*", "$JS.API.STREAM.MSG.GET.*", "$JS.API.DIRECT.GET.*", "$JS.API.CONSUMER.LIST.*" ]
    subscribe: [ "_INBOX.>" ] }} }}
] }} }}
"""


def test_housekeeping_that_is_not_permitted_gives_one_warning_and_no_error(
    folder: Any, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    with NatsServer(folder, config=ACCOUNTS.format(store=folder / "data")) as running:
        admin = Admin(running.url, user="admin", password="a")
        try:
            admin.create(stream)
            admin.create(f"{stream}Q", retention="workqueue")
            admin.numbers(stream, 30)
            options = {"user": "reader", "password": "r"}
            with (
                caplog.at_level(logging.WARNING, "penstock"),
                opened(running.url, stream=stream, progressConsumer="spark", **options) as source,
            ):
                query = Query(source)
                for _ in range(3):
                    query.batch(10)
                    source.commit(query.offsets)
                assert query.at["next"] == {stream: 31}
            warned = [record.getMessage() for record in caplog.records]
            assert len(warned) == 1
            assert warned[0].startswith("housekeeping failed, no row is affected: ")
            assert f"$JS.API.CONSUMER.INFO.{stream}.spark" in warned[0]
            with (
                opened(running.url, stream=f"{stream}Q", **options) as source,
                pytest.raises(Denied, match=rf"CONSUMER\.INFO\.{stream}Q\.penstock.* Grant that to the account"),
            ):
                Query(source)
        finally:
            admin.close()


def test_housekeeping_on_a_dead_connection_is_no_error(
    folder: Any, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    with server(folder) as (running, admin):
        admin.create(stream, retention="workqueue")
        admin.numbers(stream, 30)
        with opened(running.url, stream=stream, connectTimeout="1s") as source:
            query = Query(source)
            query.batch(10)
            running.kill()
            source.commit(query.offsets)
            source.commit(query.offsets)
            assert caplog.text.count("housekeeping failed") == 1
            running.start()
            source.commit(query.offsets)
            assert source.bounds()[stream].first == 11


def test_a_task_can_read_what_was_released_in_the_meantime_of_a_work_queue_as_nothing(
    admin: Admin, nats: NatsServer, queue: str
) -> None:
    """Spark may run a task twice, and the second after the commit: the rows are gone by design, which is no loss."""
    with opened(nats.url, stream=queue) as source:
        span = whole(source, queue)
        source.commit({queue: Position(31, span.epoch)})
        assert sequences(table(source, Range(queue, 1, 41, span.epoch))) == list(range(31, 41))
