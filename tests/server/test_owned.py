"""Streams that release messages belong to one query at a time, and what goes unread is said."""

import logging
from typing import Any

import pyarrow as pa
import pytest
from jetstream_sources import Query, numbers, once, opened, sequences, table, take, until

from nats_servers import Admin
from penstock.clients.jetstream.calls import ApiError, Calls
from penstock.errors import ConnectError, DataLossError, OptionError
from penstock.planning.planner import Planner
from penstock.testing.nats_server import NatsServer

TAKEN = (
    r"another query has taken over the consumer '{name}' of stream '{stream}', .* own 'subjects' and progressConsumer"
)
USED = r"another query has used the consumer '{name}' of stream '{stream}' since this one did, and may have released"


def left(admin: Admin, stream: str) -> list[int]:
    """The bodies that the stream still has."""
    found, at = [], 1
    while (message := admin.calls.first_from(stream, at)) is not None:
        found.append(int(message.body))
        at = message.sequence + 1
    return found


def read(query: Query) -> list[int]:
    return [n for rows in query.run() for n in numbers(rows)]


def durables(admin: Admin, stream: str) -> list[str]:
    return sorted(str(config["durable_name"]) for config in admin.calls.consumers(stream))


@pytest.fixture
def queue(admin: Admin, stream: str) -> str:
    """A work queue of 60 messages: odd sequences on .a, even ones on .b."""
    admin.create(stream, retention="workqueue")
    admin.publish((f"{stream}.{'ab'[i % 2]}", str(i).encode()) for i in range(60))
    return stream


# --- two queries ---


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
@pytest.mark.parametrize("news", [False, True])
def test_of_two_queries_on_one_stream_the_first_stops_and_deletes_nothing(
    admin: Admin, nats: NatsServer, stream: str, retention: str, news: bool, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"stream": stream} | ({"progressConsumer": "spark"} if retention == "interest" else {})
    name = options.get("progressConsumer", "penstock")
    admin.create(stream, retention=retention)
    with opened(nats.url, **options) as one, opened(nats.url, **options) as other:
        first = Query(one)
        admin.numbers(stream, 60)
        assert numbers(first.batch(20) or pa.table({"value": []})) == list(range(20))
        one.commit(first.offsets)
        rows = first.batch(20)
        assert rows is not None
        with caplog.at_level(logging.WARNING, "penstock"):
            second = Query(other)
        assert f"takes over the consumer '{name}'" in caplog.text
        if news:
            admin.numbers(stream, 1, start=60)
        for _ in range(2):
            with pytest.raises(OptionError, match=TAKEN.format(name=name, stream=stream)):
                first.step()
        one.commit(first.offsets)
        assert left(admin, stream) == list(range(20, 60 + news)), "nothing of what the second has not read is gone"
        assert read(second) == list(range(20, 60 + news))
        at = first.at
        admin.numbers(stream, 1, start=70)
    with (
        opened(nats.url, **options) as one,
        pytest.raises(DataLossError, match=USED.format(name=name, stream=stream)),
    ):
        Query(one, at=at).step()
    with opened(nats.url, **options, failOnDataLoss="false") as one:
        assert read(Query(one, at=at)) == [*range(40, 60 + news), 70], "and goes on where it is told to"


def test_two_queries_with_subjects_of_their_own_share_a_work_queue(admin: Admin, nats: NatsServer, queue: str) -> None:
    with (
        opened(nats.url, stream=queue, subjects=f"{queue}.a") as one,
        opened(nats.url, stream=queue, subjects=f"{queue}.b") as other,
    ):
        first, second = Query(one), Query(other)
        assert read(first) == list(range(0, 60, 2))
        one.commit(first.offsets)
        assert read(second) == list(range(1, 60, 2))
        other.commit(second.offsets)
    assert left(admin, queue) == []


@pytest.mark.parametrize("subjects", ["", "{s}.*", "{s}.a,{s}.c"])
def test_a_query_that_overlaps_with_that_of_another_is_refused(
    admin: Admin, nats: NatsServer, queue: str, subjects: str
) -> None:
    with opened(nats.url, stream=queue, subjects=f"{queue}.a") as one:
        Query(one)
        [name] = durables(admin, queue)
        with (
            opened(nats.url, stream=queue, subjects=subjects.format(s=queue)) as other,
            pytest.raises(OptionError, match=rf"'{name}' of another Penstock query .*nats consumer rm {queue} {name}"),
        ):
            Query(other)


def test_nobody_else_can_consume_what_a_query_reads(admin: Admin, nats: NatsServer, queue: str) -> None:
    body = {"stream_name": queue, "config": {"durable_name": "w", "ack_policy": "explicit"}}
    with opened(nats.url, stream=queue) as source:
        query = Query(source)
        with pytest.raises(ApiError, match="multiple non-filtered consumers not allowed on workqueue"):
            admin.calls.call(f"CONSUMER.CREATE.{queue}.w", body)
        assert read(query) == list(range(60))


def test_a_consumer_that_came_when_ours_was_deleted_stops_the_query(admin: Admin, nats: NatsServer, queue: str) -> None:
    with opened(nats.url, stream=queue) as source:
        query = Query(source)
        admin.calls.call(f"CONSUMER.DELETE.{queue}.penstock")
        body = {"stream_name": queue, "config": {"durable_name": "w", "ack_policy": "explicit"}}
        admin.calls.call(f"CONSUMER.CREATE.{queue}.w", body)
        query.batch(20)
        source.commit(query.offsets)
        assert left(admin, queue) == list(range(60)), "nothing that the other may have is deleted"
        admin.numbers(queue, 1, start=60)
        with pytest.raises(OptionError, match=rf"work-queue stream '{queue}' has the consumer 'w' for the same"):
            query.step()


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
@pytest.mark.parametrize("subjects", ["", "{s}.n"])
def test_of_two_runs_on_copies_of_one_checkpoint_the_first_stops(
    admin: Admin, nats: NatsServer, stream: str, retention: str, subjects: str
) -> None:
    options = {"stream": stream, "progressConsumer": "spark", "subjects": subjects.format(s=stream)}
    admin.create(stream, retention=retention)
    with opened(nats.url, **options) as one, opened(nats.url, **options) as copy:
        first = Query(one)
        admin.numbers(stream, 60)
        first.batch(20)
        second = Query(copy, at=first.at)
        assert read(second) == list(range(20, 60))
        copy.commit(second.offsets)
        with pytest.raises(OptionError, match="another run of this query has taken over the consumer 'spark'"):
            first.step()


def test_a_query_is_its_own_successor(admin: Admin, nats: NatsServer, queue: str, caplog: Any) -> None:
    """However often it is started again, also before anything is written down."""
    with opened(nats.url, stream=queue) as source:
        query = Query(source)
    for _ in range(3):
        with opened(nats.url, stream=queue) as source:
            query = Query(source, at=query.at)
            query.step(5)
    assert "takes over" not in caplog.text


def test_a_query_that_goes_on_with_fewer_subjects_leaves_no_consumer_behind(
    admin: Admin, nats: NatsServer, queue: str
) -> None:
    with opened(nats.url, stream=queue) as source:
        query = Query(source)
        query.batch(20)
    for options in ({"subjects": f"{queue}.a"}, {"subjects": f"{queue}.a", "progressConsumer": "mine"}):
        with opened(nats.url, stream=queue, **options) as source:
            query = Query(source, at=query.at)
            query.batch(5)
        assert len(durables(admin, queue)) == 1
    assert durables(admin, queue) == ["mine"]


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_a_query_that_goes_on_with_more_subjects_holds_these_too(
    admin: Admin, nats: NatsServer, stream: str, retention: str
) -> None:
    options = {"stream": stream, "progressConsumer": "mine"}
    admin.create(stream, retention=retention)
    with opened(nats.url, **options, subjects=f"{stream}.a") as source:
        query = Query(source)
        admin.publish([(f"{stream}.a", b"1")])
        assert read(query) == [1]
    with opened(nats.url, **options, subjects=f"{stream}.a,{stream}.b") as source:
        query = Query(source, at=query.at)
        query.step()
        body = {"durable_name": "w", "ack_policy": "explicit", "filter_subject": f"{stream}.b"}
        if retention == "workqueue":
            with pytest.raises(ApiError, match="not unique on workqueue"):
                admin.calls.call(f"CONSUMER.CREATE.{stream}.w", {"stream_name": stream, "config": body})
        admin.publish([(f"{stream}.b", b"2"), (f"{stream}.a", b"3")])
        assert read(query) == [2, 3]
    with opened(nats.url, **options, subjects=f"{stream}.b") as source:
        query = Query(source)  # a new one, for other messages
        admin.publish([(f"{stream}.b", b"4"), (f"{stream}.a", b"5")])
        assert read(query)[-1:] == [4]


def test_a_progress_consumer_with_a_new_name_leaves_none_behind(admin: Admin, nats: NatsServer, stream: str) -> None:
    admin.create(stream, retention="interest")
    with opened(nats.url, stream=stream, progressConsumer="one") as source:
        query = Query(source)
        admin.numbers(stream, 10)
        query.batch(5)
    with opened(nats.url, stream=stream, progressConsumer="two") as source:
        query = Query(source, at=query.at)
        assert read(query) == list(range(5, 10))
        source.commit(query.offsets)
    assert durables(admin, stream) == ["two"]
    assert left(admin, stream) == []


def test_a_stream_that_was_taken_over_does_not_keep_the_others_from_being_released(
    admin: Admin, nats: NatsServer, stream: str
) -> None:
    names = [f"{stream}A", f"{stream}B"]
    for name in names:
        admin.create(name, retention="workqueue")
        admin.numbers(name, 10)
    with opened(nats.url, stream=",".join(names)) as source, opened(nats.url, stream=names[0]) as other:
        query = Query(source)
        query.batch()
        Query(other)
        source.commit(query.offsets)
    assert left(admin, names[0]) == list(range(10))
    assert left(admin, names[1]) == []


@pytest.mark.parametrize("commits", [False, True])
def test_what_the_query_before_releases_while_the_next_one_starts_is_no_loss(
    admin: Admin, nats: NatsServer, queue: str, commits: bool
) -> None:
    with opened(nats.url, stream=queue) as one, opened(nats.url, stream=queue) as other:
        first = Query(one)
        first.batch(20)
        second = Planner(other, other.options, "earliest")
        start = second.initial()
        if commits:
            one.commit(first.offsets)
        at = second.next(start, None)
        assert at["next"] == {queue: 21 if commits else 1}
        assert read(Query(other, at=at)) == list(range(20 if commits else 0, 60))


# --- what goes unread ---


def trim(admin: Admin, stream: str, keep: int) -> None:
    """As limits do it: the oldest messages go."""
    admin.purge(stream, keep=keep)


@pytest.mark.parametrize("gap", [False, True], ids=["no gap", "a batch ends at a gap"])
@pytest.mark.parametrize("when", ["while it runs", "while it is down", "before a task reads"])
def test_messages_of_a_work_queue_that_go_unread_are_loss(
    admin: Admin, nats: NatsServer, queue: str, when: str, gap: bool
) -> None:
    for sequence in range(41, 46) if gap else ():
        admin.delete_message(queue, sequence)
    with opened(nats.url, stream=queue) as source:
        query = Query(source)
        query.batch(20)
        source.commit(query.offsets)
        start, end = query.at, query.step(20)
        if when != "before a task reads":
            trim(admin, queue, 30)
        first = admin.calls.stream(queue).first
        if when == "while it runs":
            words = rf"starts at {first}, but the query is at 21: {first - 21} messages .* unread"
            with pytest.raises(DataLossError, match=words):
                query.step()
        if when == "before a task reads":
            trim(admin, queue, 10)
            with pytest.raises(DataLossError, match="starts at 51, but the query is at 21"):
                table(source, *(span for task in query.plan.tasks(start, end) for span in task))
    if when == "while it is down":
        with opened(nats.url, stream=queue) as source, pytest.raises(DataLossError, match=f"starts at {first}"):
            Query(source, at=start).step()
    with opened(nats.url, stream=queue, failOnDataLoss="false") as source:
        kept = [n for n in range(60) if not gap or n not in range(40, 45)]
        assert read(Query(source, at=start)) == kept[-10 if when == "before a task reads" else -30 :]


def test_gaps_that_were_there_before_are_no_loss(admin: Admin, nats: NatsServer, queue: str) -> None:
    """Workers took some before, in no order. Positions jump over what is not there: nothing must seem to be lost."""
    query: Query | None = None
    gone = [1, 2, *range(10, 25), 40, 41, 42, 60]
    for sequence in gone:
        admin.delete_message(queue, sequence)
    found: list[int] = []
    for size in (7, 8, 1, 14, 100):
        with opened(nats.url, stream=queue) as source:
            query = Query(source, at=query.at) if query else Query(source)
            rows = query.batch(size)
            assert rows is not None
            found += sequences(rows)
            source.commit(query.offsets)
            query.step(1)
    assert found == [n for n in range(1, 61) if n not in gone]
    assert left(admin, queue) == []


def test_a_start_in_a_gap_is_no_loss_either(admin: Admin, nats: NatsServer, queue: str) -> None:
    for sequence in range(10, 25):
        admin.delete_message(queue, sequence)
    options = {"startingOffsets": f'{{"{queue}": 12}}', "purgeUnread": "true", "stream": queue}
    with opened(nats.url, **options) as source:
        query = Query(source)
        at = query.at
    with opened(nats.url, **options) as source:
        query = Query(source, at=at)
        assert read(query) == list(range(24, 60))
        source.commit(query.offsets)
    assert left(admin, queue) == []


def test_a_batch_read_does_not_mind_what_workers_take_meanwhile(admin: Admin, nats: NatsServer, queue: str) -> None:
    with opened(nats.url, stream=queue) as source:
        tasks = once(source)
        trim(admin, queue, 10)
        assert numbers(table(source, *(span for task in tasks for span in task))) == list(range(50, 60))


@pytest.mark.parametrize("how", ["an older checkpoint", "somebody pulls from the durable"])
def test_what_the_durable_of_an_interest_stream_has_let_go_unread_is_loss(
    admin: Admin, nats: NatsServer, stream: str, how: str
) -> None:
    admin.create(stream, retention="interest")
    with opened(nats.url, stream=stream, progressConsumer="p") as source:
        query = Query(source)
        admin.numbers(stream, 50)
        query.batch(10)
        source.commit(query.offsets)
        at = query.at
        if how == "an older checkpoint":
            read(query)
            source.commit(query.offsets)
        else:
            for reply in take(admin, stream, 3, "p"):
                admin.connection.request(reply.decode(), b"+ACK")
        if how != "an older checkpoint":
            admin.numbers(stream, 1, start=50)
            with pytest.raises(DataLossError, match=r"moved, or not there yet: 3 of the 41 messages .* are gone"):
                query.step()
            return
    with (
        opened(nats.url, stream=stream, progressConsumer="p") as source,
        pytest.raises(DataLossError, match=r"moved, or not there yet: 40 of the 40 messages .* are gone"),
    ):
        Query(source, at=at).step()


def test_a_new_query_is_not_given_a_durable_that_keeps_less_than_it_would_read(
    admin: Admin, nats: NatsServer, stream: str
) -> None:
    admin.create(stream, retention="interest")
    body = {"durable_name": "other", "ack_policy": "explicit"}
    admin.calls.call(f"CONSUMER.CREATE.{stream}.other", {"stream_name": stream, "config": body})
    with opened(nats.url, stream=stream, progressConsumer="p") as source:
        query = Query(source)
        admin.numbers(stream, 50)
        read(query)
        source.commit(query.offsets)
    with (
        opened(nats.url, stream=stream, progressConsumer="p") as source,
        pytest.raises(OptionError, match=r"keeps nothing up to 50, but the query would start at 1, with 50 messages"),
    ):
        Query(source)
    with opened(nats.url, stream=stream, progressConsumer="new") as source:
        assert read(Query(source)) == list(range(50))


# --- streams that feed one another ---


def test_gaps_of_a_mirror_are_no_loss(admin: Admin, nats: NatsServer, stream: str) -> None:
    """It has the numbers of its origin."""
    admin.create(stream)
    mirror = {"mirror": {"name": stream, "filter_subject": f"{stream}.a"}, "retention": "workqueue", "subjects": []}
    admin.create(f"{stream}M", **mirror)
    with opened(nats.url, stream=f"{stream}M") as source:
        query = Query(source)
        found = []
        for low in range(0, 40, 10):
            admin.publish((f"{stream}.{'ab'[i % 5 > 0]}", str(i).encode()) for i in range(low, low + 10))
            until(lambda low=low: admin.calls.stream(f"{stream}M").last > low + 5)
            found += read(query)
            source.commit(query.offsets)
    assert found == list(range(0, 40, 5))


@pytest.mark.parametrize("feeds", ["mirror", "sources"])
def test_a_work_queue_that_feeds_another_stream_is_refused(
    admin: Admin, nats: NatsServer, queue: str, feeds: str
) -> None:
    """From nats-server 2.14 on, the other stream is a reader like any other."""
    config: dict[str, Any] = {"mirror": {"name": queue}} if feeds == "mirror" else {"sources": [{"name": queue}]}
    admin.create(f"{queue}F", **config, subjects=[])
    until(lambda: admin.calls.stream(f"{queue}F").messages == 60)
    with (
        opened(nats.url, stream=queue) as source,
        pytest.raises(OptionError, match=rf"'{queue}' feeds another stream .* Read that stream"),
    ):
        Query(source)


def test_a_stream_without_room_for_the_durable_says_what_it_is_for(admin: Admin, nats: NatsServer, stream: str) -> None:
    admin.create(stream, retention="workqueue", max_consumers=1)
    body = {"durable_name": "w", "ack_policy": "explicit", "filter_subject": f"{stream}.a"}
    admin.calls.call(f"CONSUMER.CREATE.{stream}.w", {"stream_name": stream, "config": body})
    with (
        opened(nats.url, stream=stream, subjects=f"{stream}.b") as source,
        pytest.raises(ConnectError, match=r"no room for the consumer 'penstock-\w+', by which .* Raise max_consumers"),
    ):
        Query(source)


# --- what changes under a query ---


def edit(admin: Admin, stream: str, **changes: Any) -> None:
    config = admin.calls.call(f"STREAM.INFO.{stream}")["config"]
    admin.calls.call(f"STREAM.UPDATE.{stream}", config | changes)


@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_a_query_knows_its_consumer_again_where_a_stream_was_edited_to_interest_retention(
    admin: Admin, nats: NatsServer, stream: str, restarts: int
) -> None:
    """Of a stream that does not depend on it, the consumer is nobody's; and an idle query writes nothing down."""
    admin.create(stream)
    options = {"stream": stream, "progressConsumer": "spark"}
    with opened(nats.url, **options) as source:
        query = Query(source)
        admin.numbers(stream, 10)
        read(query)
        query.step()
        if not restarts:
            edit(admin, stream, retention="interest")
            query.step()
    for number in range(restarts):
        with opened(nats.url, **options) as source:
            Query(source, at=query.at).step()
            if not number:
                edit(admin, stream, retention="interest")
                Query(source, at=query.at).step()
    admin.numbers(stream, 10, start=10)
    with opened(nats.url, **options) as source:
        assert read(Query(source, at=query.at)) == list(range(10, 20))


@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize("interrupted", [False, True])
def test_messages_that_were_dropped_behind_one_that_others_kept_are_loss(
    admin: Admin, nats: NatsServer, stream: str, edited: bool, interrupted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the first answer to how many are there was a mirror's, and the durable was made again by then."""
    admin.create(stream, retention="limits" if edited else "interest")
    options = {"stream": stream, "progressConsumer": "spark"}
    with opened(nats.url, **options) as source:
        at = Query(source).at
    admin.calls.call(f"CONSUMER.DELETE.{stream}.spark")
    if edited:
        edit(admin, stream, retention="interest")
    body = {"durable_name": "other", "ack_policy": "explicit", "filter_subject": f"{stream}.a"}
    admin.calls.call(f"CONSUMER.CREATE.{stream}.other", {"stream_name": stream, "config": body})
    admin.publish([(f"{stream}.a", b"0"), *((f"{stream}.b", b"1") for _ in range(9))])
    answers: list[Any] = [None] * interrupted
    counts = Calls.direct_counts
    monkeypatch.setattr(Calls, "direct_counts", lambda *given: answers.pop() if answers else counts(*given))
    with (
        opened(nats.url, **options) as source,
        pytest.raises(DataLossError, match="9 of the 10 messages since then are gone"),
    ):
        Query(source, at=at).step()
    assert not answers


def test_an_edit_to_interest_retention_of_a_stream_without_direct_get_is_refused_with_the_way_out(
    admin: Admin, nats: NatsServer, stream: str
) -> None:
    admin.create(stream, allow_direct=False)
    with opened(nats.url, stream=stream, progressConsumer="spark") as source:
        query = Query(source)
        edit(admin, stream, retention="interest", allow_direct=False)
        with pytest.raises(OptionError, match=rf"nats stream edit {stream} --allow-direct"):
            query.step()


@pytest.mark.parametrize("progress", [{}, {"progressConsumer": "spark"}], ids=["none", "a progress consumer"])
def test_an_edit_to_interest_retention_under_an_idle_query_loses_nothing_silently(
    admin: Admin, nats: NatsServer, stream: str, progress: dict[str, str]
) -> None:
    admin.create(stream)
    with opened(nats.url, stream=stream, **progress) as source:
        query = Query(source)
        admin.numbers(stream, 10)
        assert read(query) == list(range(10))
        query.step()
        edit(admin, stream, retention="interest")
        if not progress:
            with pytest.raises(OptionError, match=r"has interest retention .* Set progressConsumer"):
                query.step()
            return
        query.step()
        admin.numbers(stream, 10, start=10)
        assert read(query) == list(range(10, 20))
        source.commit(query.offsets)
    assert left(admin, stream) == [], "and what is committed is released"


def test_what_was_dropped_before_the_edit_was_seen_is_loss(admin: Admin, nats: NatsServer, stream: str) -> None:
    admin.create(stream)
    with opened(nats.url, stream=stream, progressConsumer="spark") as source:
        query = Query(source)
        admin.numbers(stream, 10)
        read(query)
        query.step()
        admin.calls.call(f"CONSUMER.DELETE.{stream}.spark")
        edit(admin, stream, retention="interest")
        admin.numbers(stream, 10, start=10)
        with pytest.raises(DataLossError, match="10 of the 10 messages since then are gone"):
            query.step()


def test_a_stream_that_is_deleted_between_a_look_and_the_plan_is_told_as_that(
    admin: Admin, nats: NatsServer, queue: str
) -> None:
    options = {"stream": queue, "subjects": f"{queue}.a", "minPartitions": 2, "reconnectTimeout": "3s"}
    with opened(nats.url, **options) as source:
        query = Query(source)
        query.plan.look(now=True)
        admin.delete(queue)
        assert query.plan.next(query.at, None)["next"] == {queue: 61}
        with pytest.raises(DataLossError, match=rf"stream '{queue}' is gone"):
            query.step()


@pytest.mark.parametrize("restarted", [False, True])
def test_a_stream_that_is_made_again_as_a_work_queue_is_read_from_its_first_message(
    admin: Admin, nats: NatsServer, stream: str, restarted: bool
) -> None:
    admin.create(stream)
    admin.numbers(stream, 50)
    options = {"stream": stream, "failOnDataLoss": "false"}
    with opened(nats.url, **options) as source:
        query = Query(source)
        assert read(query) == list(range(50))
        query.step()
        admin.delete(stream)
        admin.create(stream, retention="workqueue")
        admin.numbers(stream, 60, start=100)
        if not restarted:
            assert read(query) == list(range(100, 160))
            return
    with opened(nats.url, **options) as source:
        assert read(Query(source, at=query.at)) == list(range(100, 160))


def test_the_last_batch_of_a_run_is_released_when_the_next_one_starts(
    admin: Admin, nats: NatsServer, queue: str
) -> None:
    """Spark commits a batch when it plans the next one: of a quiet queue, none would ever come."""
    with opened(nats.url, stream=queue) as source:
        query = Query(source)
        query.batch()
    assert len(left(admin, queue)) == 60
    with opened(nats.url, stream=queue) as source:
        assert Query(source, at=query.at).step() == query.at
    assert left(admin, queue) == []
