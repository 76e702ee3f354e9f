"""Where a query begins on a work queue: what it has not read is never purged without a word."""

from typing import Any

import pytest
from jetstream_sources import Query, numbers, once, opened, table

from nats_servers import Admin
from penstock.errors import OptionError
from penstock.spark.reading import StreamReader
from penstock.testing.nats_server import NatsServer


@pytest.fixture
def jobs(admin: Admin, stream: str) -> str:
    """A work queue of 60 messages: odd sequences on .a, even ones on .b."""
    admin.create(stream, retention="workqueue")
    admin.publish((f"{stream}.{'ab'[i % 2]}", str(i).encode()) for i in range(60))
    return stream


def stored(admin: Admin, stream: str) -> list[int]:
    """The bodies that the stream still has."""
    found, at = [], 1
    while (message := admin.calls.first_from(stream, at)) is not None:
        found.append(int(message.body))
        at = message.sequence + 1
    return found


def finish(query: Query) -> list[int]:
    """All that is left, read and committed."""
    read = [n for rows in query.run() for n in numbers(rows)]
    query.source.commit(query.offsets)
    return read


def test_a_new_query_reads_the_backlog_of_a_work_queue(admin: Admin, nats: NatsServer, jobs: str) -> None:
    admin.create(f"{jobs}_log", f"{jobs}_log")
    admin.numbers(f"{jobs}_log", 5, subject=f"{jobs}_log")
    with opened(nats.url, stream=f"{jobs},{jobs}_log") as source:
        query = Query(source, StreamReader.default_start)
        assert query.at["next"] == {jobs: 1, f"{jobs}_log": 6}, "another stream starts at its latest, as ever"
        assert finish(query) == list(range(60))
    assert stored(admin, jobs) == []


@pytest.mark.parametrize("options", [{"startingOffsets": "latest"}, {"startingOffsets": '{"%s": 41}'}])
@pytest.mark.parametrize(("subjects", "unread"), [("", (60, 40)), ("a", (30, 20)), ("a,b", (60, 40)), ("c", (0, 0))])
def test_a_start_behind_unread_messages_is_refused_with_their_number(
    admin: Admin, nats: NatsServer, jobs: str, options: dict[str, str], subjects: str, unread: tuple[int, int]
) -> None:
    options = {name: text % jobs if "%" in text else text for name, text in options.items()}
    if subjects:
        options["subjects"] = ",".join(f"{jobs}.{text}" for text in subjects.split(","))
    at, count = (61, unread[0]) if "latest" in options.values() else (41, unread[1])
    with opened(nats.url, stream=jobs, **options) as source:
        if not count:
            assert finish(Query(source, StreamReader.default_start)) == []
        else:
            with pytest.raises(
                OptionError,
                match=rf"would start at {at} of the work queue '{jobs}', and its first commit would delete the {count} "
                r"messages before that, which nobody has read\. Start at earliest, or set purgeUnread=true",
            ):
                Query(source, StreamReader.default_start)
    assert stored(admin, jobs) == list(range(60))


def test_a_start_in_time_behind_unread_messages_is_refused(admin: Admin, nats: NatsServer, jobs: str) -> None:
    with (
        opened(nats.url, stream=jobs, startingTimestamp="2100-01-01T00:00:00Z") as source,
        pytest.raises(OptionError, match="delete the 60 messages"),
    ):
        Query(source, StreamReader.default_start)


def test_unread_messages_go_where_the_user_says_so(admin: Admin, nats: NatsServer, jobs: str) -> None:
    options = {"startingOffsets": "latest", "purgeUnread": "true", "subjects": f"{jobs}.a"}
    with opened(nats.url, stream=jobs, **options) as source:
        query = Query(source, StreamReader.default_start)
        admin.publish([(f"{jobs}.a", b"60")])
        assert finish(query) == [60]
    assert stored(admin, jobs) == list(range(1, 60, 2))


def test_a_batch_read_may_start_anywhere(admin: Admin, nats: NatsServer, jobs: str) -> None:
    """It releases nothing."""
    with opened(nats.url, stream=jobs, startingOffsets=f'{{"{jobs}": 41}}') as source:
        assert numbers(table(source, *(span for task in once(source) for span in task))) == list(range(40, 60))


@pytest.mark.parametrize(
    ("before", "after", "unread"),
    [
        ("a", "a,b", 10),
        ("a", "", 10),
        ("a", "*", 10),
        ("a", "b", 10),
        ("a", "a", 0),
        ("a,b", "b,a", 0),
        ("a,b", "b", 0),
        ("*", "a,b", 0),
        ("", "a,b", 0),
        ("a", "a,c", 0),
    ],
)
def test_a_query_that_goes_on_with_other_subjects_purges_nothing_that_it_has_not_read(
    admin: Admin, nats: NatsServer, jobs: str, before: str, after: str, unread: int
) -> None:
    def options(texts: str) -> dict[str, Any]:
        subjects = {"subjects": ",".join(f"{jobs}.{text}" for text in texts.split(","))} if texts else {}
        return {"stream": jobs, **subjects}

    with opened(nats.url, **options(before)) as source:
        query = Query(source)
        rows = query.batch(10 if before == "a" else 20)
        assert rows is not None
        assert query.at["next"] == {jobs: 21}
        # not committed: what was read lies before the position, and is not unread
    with opened(nats.url, **options(after)) as source:
        query = Query(source, at=query.at)
        if unread:
            words = (
                rf"read '{jobs}\.a' of the work queue '{jobs}' until now.* {unread} messages lie before its position 21"
            )
            with pytest.raises(OptionError, match=words):
                query.step()
            assert stored(admin, jobs) == list(range(60))
            return
        read = numbers(rows) + finish(query)
    wanted = {n for n in range(60) if after in ("", "*") or "ab"[n % 2] in after}
    assert {n for n in read if n >= 20} == {n for n in wanted if n >= 20}
    assert set(stored(admin, jobs)) == set(range(60)) - wanted
