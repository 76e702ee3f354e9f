import time
from datetime import timedelta
from typing import Any

import pytest

from kinesis_servers import Kinesis as KinesisServer
from penstock.clients.kinesis.calls import Calls
from penstock.connectors.kinesis import Kinesis
from penstock.connectors.kinesis.cursor import Cursor
from penstock.connectors.kinesis.source import KinesisSource
from penstock.errors import ConnectError, DataLossError, Disconnected, OptionError
from penstock.kit.contract import Origin
from penstock.planning.checkpoint import Checkpoint
from penstock.planning.planner import Planner
from penstock.planning.positions import END, Range

SHARD = "shardId-{:012}".format


class Query:
    """What Spark does with a source, one batch after the other, without Spark."""

    def __init__(self, double: KinesisServer, stream: str, checkpoint: dict[str, Any] | None = None, **options: Any):
        given = {
            **double.options(stream),
            "pollInterval": "1ms",
            **{name: str(value) for name, value in options.items()},
        }
        self.options = Kinesis.parse(given)
        self.source = KinesisSource(self.options, Kinesis.columns(self.options))
        self.planner = Planner(self.source, self.options, "latest")
        self.checkpoint = checkpoint
        self.by_driver = 0

    def batch(self, *, by_tasks: bool = False) -> list[str]:
        """The values of one batch, in the order of tasks; empty where there is nothing to read. As Spark does it, a
        batch is committed when the next one is planned.
        """
        if self.checkpoint is None:
            self.checkpoint = self.planner.next(self.planner.initial(), None)
        time.sleep(0.002)  # pollInterval
        self.planner.look(now=True)
        end = self.planner.next(self.checkpoint, self.options.max_records_per_trigger)
        if end == self.checkpoint:
            return []
        self.source.commit(Checkpoint.decode(self.checkpoint).positions)
        values = self.rows(self.checkpoint, end, by_tasks=by_tasks)
        self.checkpoint = end
        return values

    def rows(self, start: dict[str, Any], end: dict[str, Any], *, by_tasks: bool = False) -> list[str]:
        values = []
        for (span,) in self.planner.tasks(start, end):
            fetched = None if by_tasks else self.source.fetched(span)
            self.by_driver += fetched is not None
            for batch in (
                fetched if fetched is not None else KinesisSource(self.options, self.source.columns).read(span)
            ):
                values += [value.decode() for value in batch.column("value").to_pylist()]
        return values

    def all(self, **how: bool) -> list[str]:
        """The values of all batches until nothing more comes."""
        values: list[str] = []
        for _ in range(50):
            before = self.checkpoint
            values += self.batch(**how)
            if self.checkpoint == before:
                return values
        raise AssertionError("there is always more")


@pytest.fixture
def double(kinesis: KinesisServer) -> KinesisServer:
    kinesis.throttle(0)
    kinesis.answer_empty(0)
    kinesis.refuse(0)
    return kinesis


@pytest.fixture
def name(double: KinesisServer, request: pytest.FixtureRequest) -> str:
    stream = f"s{abs(hash(request.node.nodeid))}"
    double.make(stream)
    return stream


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"v%d" % number for number in range(first, first + count)]


def texts(values: list[bytes]) -> list[str]:
    return [value.decode() for value in values]


@pytest.mark.parametrize("by_tasks", [False, True])
def test_every_record_is_read_once_in_order(double: KinesisServer, name: str, by_tasks: bool) -> None:
    query = Query(double, name, startingOffsets="earliest")
    double.put(name, numbered(50))
    assert query.all(by_tasks=by_tasks) == texts(numbered(50))
    double.put(name, numbered(30, 50))
    assert query.all(by_tasks=by_tasks) == texts(numbered(30, 50))
    assert query.all(by_tasks=by_tasks) == []


def test_what_the_driver_read_to_know_the_end_is_not_read_again_by_tasks(double: KinesisServer, name: str) -> None:
    query = Query(double, name, startingOffsets="earliest")
    double.put(name, numbered(50))
    query.all()
    for _ in range(3):
        asked, by_driver = len(double.asked), query.by_driver
        double.put(name, numbered(50))
        assert query.batch() == texts(numbered(50))
        assert query.by_driver == by_driver + 1
        assert double.asked[asked:] == [f"records {SHARD(0)}"], "one look at the shard"


def test_a_new_query_starts_at_the_newest_record_wherever_that_is(double: KinesisServer, name: str) -> None:
    for age in (timedelta(0), timedelta(minutes=3), timedelta(hours=20), timedelta(days=300)):
        double.put(name, numbered(20))
        double.age(name, age)
        query = Query(double, name)
        assert query.all() == []
        double.put(name, [b"new"])
        assert query.all() == ["new"]


def test_empty_answers_do_not_hide_the_newest_record(double: KinesisServer, name: str) -> None:
    double.put(name, numbered(20))
    double.age(name, timedelta(minutes=3))
    double.answer_empty(20)
    query = Query(double, name)
    assert query.all() == []
    double.put(name, [b"new"])
    assert query.all() == ["new"]


def test_the_newest_record_is_found_behind_more_than_can_be_read_at_once(
    double: KinesisServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.connectors.kinesis.cursor.MOST", 10)
    double.put(name, numbered(200))
    double.age(name, timedelta(seconds=55))
    double.put(name, numbered(100, 200))
    double.age(name, timedelta(minutes=5))
    query = Query(double, name)
    assert query.all() == []
    double.put(name, [b"new"])
    assert query.all() == ["new"]
    earlier = Query(double, name, startingOffsets="earliest")
    assert earlier.all() == [*texts(numbered(300)), "new"]


@pytest.mark.parametrize("by_tasks", [False, True])
def test_a_limit_of_records_is_exact_and_shared(double: KinesisServer, name: str, by_tasks: bool) -> None:
    stream = f"{name}-two"
    double.make(stream, 2)
    double.put(stream, numbered(5), SHARD(0))
    double.put(stream, numbered(100, 5), SHARD(1))
    query = Query(double, stream, startingOffsets="earliest", maxRecordsPerTrigger=20)
    sizes = []
    values: list[str] = []
    for _ in range(6):
        batch = query.batch(by_tasks=by_tasks)
        sizes.append(len(batch))
        values += batch
    assert sizes == [20, 20, 20, 20, 20, 5]
    assert sorted(values) == sorted(texts(numbered(105)))
    assert values.index("v5") < values.index("v50") < values.index("v104")


def test_a_batch_read_has_all_shards_also_those_that_follow_others(double: KinesisServer, name: str) -> None:
    double.put(name, numbered(10))
    double.split(name, SHARD(0))
    double.put(name, numbered(10, 10), SHARD(1))
    double.put(name, numbered(10, 20), SHARD(2))
    for options, count in (({}, 30), ({"maxRecords": 12}, 12)):
        query = Query(double, name, startingOffsets="earliest", **options)
        spans = [span for task in query.planner.once(lambda shard, bound: (bound.first, bound.next)) for span in task]
        values = [v for span in spans for batch in query.source.read(span) for v in batch.column("value").to_pylist()]
        assert len(values) == len(set(values)) == count


def test_a_shard_that_fails_does_not_double_what_another_reads(
    double: KinesisServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = f"{name}-two"
    double.make(stream, 2)
    query = Query(double, stream, startingOffsets="earliest", maxRecordsPerTrigger=100)
    query.batch()
    double.put(stream, numbered(10), SHARD(0))
    double.put(stream, numbered(10, 10), SHARD(1))
    page, asked = Cursor.page, list[str]()

    def slow_or_failing(cursor: Cursor, *given: Any) -> Any:
        asked.append(cursor.shard)
        if cursor.shard == SHARD(0) and asked.count(SHARD(0)) < 4:
            raise Disconnected("cut")
        if cursor.shard == SHARD(1):
            found = page(cursor, *given)
            time.sleep(0.5)
            return found
        return page(cursor, *given)

    monkeypatch.setattr(Cursor, "page", slow_or_failing)
    assert sorted(query.all()) == sorted(texts(numbered(20)))


def test_a_limit_of_bytes_holds_about(double: KinesisServer, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.connectors.kinesis.cursor.MOST", 10)
    monkeypatch.setattr("penstock.connectors.kinesis.tips.KEPT", 1)  # all is read anew to be counted
    double.put(name, [b"x" * 10_000] * 100)
    query = Query(double, name, startingOffsets="earliest", maxBytesPerTrigger="200kb")
    sizes = [len(query.batch()) for _ in range(8)]
    assert sum(sizes) == 100
    assert all(18 <= size <= 21 for size in sizes[:4])


@pytest.mark.parametrize("limit", [None, 7])
def test_children_of_a_split_are_read_after_their_parent(double: KinesisServer, name: str, limit: int | None) -> None:
    more = {} if limit is None else {"maxRecordsPerTrigger": limit}
    query = Query(double, name, startingOffsets="earliest", discoveryInterval="1h", **more)
    double.put(name, numbered(10))
    values = query.batch()
    double.put(name, numbered(10, 10))
    double.split(name, SHARD(0))
    double.put(name, numbered(10, 20), SHARD(1))
    double.put(name, numbered(10, 30), SHARD(2))
    double.split(name, SHARD(1))
    double.put(name, numbered(10, 40), SHARD(3))
    values += query.all()
    assert sorted(values) == sorted(texts(numbered(50)))
    assert values[:20] == texts(numbered(20)), "all of the parent comes first"
    done = values[20:]
    assert done.index("v29") < done.index("v40"), "and a grandchild after its parent"


def test_the_child_of_a_merge_waits_for_both_parents(double: KinesisServer, name: str) -> None:
    stream = f"{name}-two"
    double.make(stream, 2)
    double.put(stream, numbered(5), SHARD(0))
    double.put(stream, numbered(50, 5), SHARD(1))
    double.merge(stream, SHARD(0), SHARD(1))
    double.put(stream, numbered(5, 55), SHARD(2))
    query = Query(double, stream, startingOffsets="earliest", maxRecordsPerTrigger=10)
    values = query.all()
    assert sorted(values) == sorted(texts(numbered(60)))
    assert values[-5:] == texts(numbered(5, 55))


def test_a_new_query_at_latest_reads_only_what_comes_to_open_shards(double: KinesisServer, name: str) -> None:
    double.put(name, numbered(5))
    double.split(name, SHARD(0))
    double.put(name, numbered(5, 5), SHARD(1))
    query = Query(double, name)
    assert query.all() == []
    double.put(name, [b"new"], SHARD(2))
    double.put(name, [b"newer"], SHARD(1))
    assert sorted(query.all()) == ["new", "newer"]


def test_a_shard_that_was_read_to_its_end_may_go(double: KinesisServer, name: str) -> None:
    query = Query(double, name, startingOffsets="earliest", discoveryInterval="1ms")
    double.put(name, numbered(5))
    double.split(name, SHARD(0))
    assert query.all() == texts(numbered(5))
    assert query.checkpoint is not None
    assert query.checkpoint["next"][SHARD(0)] == END
    double.forget(name, SHARD(0))
    assert query.all() == []
    assert set(query.checkpoint["next"]) == {SHARD(1), SHARD(2)}, "it is forgotten"
    double.put(name, [b"more"], SHARD(2))
    assert Query(double, name, query.checkpoint).all() == ["more"]


def test_a_shard_that_goes_unread_is_a_loss(double: KinesisServer, name: str) -> None:
    query = Query(double, name, startingOffsets="earliest")
    double.put(name, numbered(5))
    query.all()
    double.put(name, numbered(5))
    double.split(name, SHARD(0))
    double.forget(name, SHARD(0))
    with pytest.raises(DataLossError, match=f"'{SHARD(0)}' is gone"):
        Query(double, name, query.checkpoint).all()


def test_a_batch_is_read_again_with_the_same_rows(double: KinesisServer, name: str) -> None:
    query = Query(double, name, startingOffsets="earliest", maxRecordsPerTrigger=15)
    double.put(name, numbered(10))
    query.batch()
    start = query.checkpoint
    double.put(name, numbered(30, 10))
    first = query.batch()
    end = query.checkpoint
    assert start is not None
    assert end is not None
    double.split(name, SHARD(0))
    double.put(name, numbered(10, 40), SHARD(1))
    by_driver = query.by_driver
    assert query.rows(start, end) == first == texts(numbered(15, 10)), "the driver still has them"
    assert query.by_driver == by_driver + 1
    assert Query(double, name, start).rows(start, end) == first, "and another one has not"


def test_a_query_goes_on_where_it_was(double: KinesisServer, name: str) -> None:
    query = Query(double, name, startingOffsets="earliest")
    double.put(name, numbered(10))
    query.all()
    double.put(name, numbered(10, 10))
    later = Query(double, name, query.checkpoint)
    assert later.all() == texts(numbered(10, 10))
    assert Query(double, name, later.checkpoint).all() == []


def test_throttling_expired_iterators_and_empty_answers_cost_no_record(double: KinesisServer, name: str) -> None:
    query = Query(double, name, startingOffsets="earliest")
    values: list[str] = []
    for step in range(10):
        double.put(name, numbered(10, 10 * step))
        double.throttle(step % 3)
        double.answer_empty(step % 4)
        if step % 2:
            double.expire_iterators()
        values += query.batch(by_tasks=step % 2 == 0)
    double.throttle(0)
    double.answer_empty(0)
    values += query.all()
    assert values == texts(numbered(100))


def test_a_task_waits_while_it_is_throttled_but_not_for_ever(double: KinesisServer, name: str) -> None:
    double.put(name, numbered(10))
    query = Query(double, name, startingOffsets="earliest", reconnectTimeout="300ms")
    query.planner.initial()
    whole = Range(SHARD(0), 0, query.source.bounds()[SHARD(0)].next)
    double.throttle(2)
    assert sum(map(len, query.source.read(whole))) == 10
    double.throttle(1000)
    with pytest.raises(ConnectError, match=rf"reading '{SHARD(0)}' failed .*ProvisionedThroughputExceeded"):
        list(query.source.read(whole))
    double.throttle(0)


def earlier(checkpoint: dict[str, Any] | None, hours: float) -> dict[str, Any]:
    """A checkpoint as if its query had not run for so long."""
    assert checkpoint is not None
    moments = {name: note.split("/") for name, note in checkpoint["notes"].items()}
    notes = {
        name: "/".join([str(int(moment) - int(hours * 3_600_000)), *rest]) for name, (moment, *rest) in moments.items()
    }
    return {**checkpoint, "notes": notes}


def test_records_that_expired_unread_are_a_loss_and_a_quiet_shard_is_not(double: KinesisServer, name: str) -> None:
    query = Query(double, name, startingOffsets="earliest")
    double.put(name, numbered(10))
    query.all()
    double.put(name, numbered(10, 10))
    double.trim(name, SHARD(0), 10)
    late = Query(double, name, query.checkpoint)
    assert late.all() == texts(numbered(10, 10)), "what was read has expired, and nothing else"
    old = earlier(query.checkpoint, 25)
    for by_tasks in (False, True):
        with pytest.raises(DataLossError, match="keeps records for 24 hours, and the query has not read"):
            Query(double, name, old).all(by_tasks=by_tasks)
    double.keep(name, 168)
    with pytest.raises(DataLossError, match="keeps records for 24 hours, and the query has not read"):
        Query(double, name, old).all()  # what is gone does not come back by that
    assert Query(double, name, old, failOnDataLoss=False).all() == texts(numbered(10, 10))


def test_a_checkpoint_set_back_does_not_hide_what_has_expired(double: KinesisServer, name: str) -> None:
    query = Query(double, name, startingOffsets="earliest", maxRecordsPerTrigger=5)
    double.put(name, numbered(20))
    query.batch()
    early = query.checkpoint
    query.all()
    assert early is not None
    assert query.checkpoint is not None
    set_back = {**query.checkpoint, "next": early["next"]}
    assert Query(double, name, set_back).all() == texts(numbered(15, 5))
    double.trim(name, SHARD(0), 8)
    for by_tasks in (False, True):
        with pytest.raises(DataLossError, match="was deleted unread, if anything came"):
            Query(double, name, set_back).all(by_tasks=by_tasks)
    set_back = {**query.checkpoint, "next": {SHARD(0): 0}}
    assert Query(double, name, set_back).all() == texts(numbered(12, 8)), "0 is the oldest that is kept"


def test_answers_that_lie_cost_and_double_nothing(
    double: KinesisServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, lies = Calls.page, list[Any]()

    def lying(calls: Calls, iterator: str, limit: int) -> Any:
        page = real(calls, iterator, limit)
        if not lies:
            return page
        lie = lies.pop(0)
        return page._replace(**lie, next=iterator if lie else None)  # it has ended, or there is nothing

    monkeypatch.setattr(Calls, "page", lying)
    for by_tasks in (False, True):
        for number, lie in enumerate(({}, {"numbers": [], "values": [], "keys": [], "times": [], "behind": 0})):
            stream = f"{name}-{by_tasks}-{number}"
            double.make(stream)
            query = Query(double, stream, startingOffsets="earliest")
            double.put(stream, numbered(10))
            values = query.all(by_tasks=by_tasks)
            double.put(stream, numbered(10, 10))
            lies.append(lie)
            values += query.all(by_tasks=by_tasks)
            double.put(stream, numbered(10, 20))
            values += query.all(by_tasks=by_tasks)
            assert values == texts(numbered(30))


def test_what_is_no_answer_is_asked_for_again(
    double: KinesisServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(double, name, startingOffsets="earliest")
    double.put(name, numbered(10))
    client = query.source._calls.client
    real, broken = client.get_records, [{}, {"Records": None}, []]
    monkeypatch.setattr(client, "get_records", lambda **given: broken.pop() if broken else real(**given))
    assert query.all() == texts(numbered(10))
    assert not broken


def test_a_limit_below_the_number_of_shards_starves_none(double: KinesisServer, name: str) -> None:
    stream = f"{name}-three"
    double.make(stream, 3)
    query = Query(double, stream, startingOffsets="earliest", maxRecordsPerTrigger=2)
    values: list[str] = []
    for _ in range(20):
        for number in range(3):
            double.put(stream, [b"%d" % number], SHARD(number))
            time.sleep(0.002)  # its time tells which came first
        values += query.batch()
    assert all(values.count(str(number)) >= 8 for number in range(3))


def test_a_query_that_is_slower_than_records_expire_is_told(double: KinesisServer, name: str) -> None:
    query = Query(double, name, startingOffsets="earliest", maxRecordsPerTrigger=5)
    double.put(name, numbered(20))
    double.age(name, timedelta(hours=24))
    assert query.batch() == texts(numbered(5))
    double.trim(name, SHARD(0), 8)
    with pytest.raises(DataLossError, match="was deleted unread, if anything came"):
        Query(double, name, query.checkpoint, maxRecordsPerTrigger=5).batch()


def test_what_comes_to_an_empty_shard_and_expires_is_a_loss(double: KinesisServer, name: str) -> None:
    query = Query(double, name)
    assert query.all() == []
    old = earlier(query.checkpoint, 25)
    double.put(name, numbered(5))
    assert Query(double, name, query.checkpoint).all() == texts(numbered(5))
    for by_tasks in (False, True):
        with pytest.raises(DataLossError, match="was deleted unread, if anything came"):
            Query(double, name, old).all(by_tasks=by_tasks)


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_quiet_query_notes_now_and_then_that_it_has_read_all(
    double: KinesisServer, name: str, is_frozen: bool
) -> None:
    double.put(name, numbered(10))
    query = Query(double, name)
    query.all()
    noted = query.checkpoint
    assert noted is not None
    for hours, is_due in ((2, False), (4, True), (30, True)):
        old = earlier(noted, hours)
        quiet = Query(double, name, old)
        if is_frozen:
            quiet.planner.freeze()
        assert quiet.batch() == []
        assert quiet.checkpoint is not None
        assert (quiet.checkpoint == old) is not is_due
        assert quiet.checkpoint["next"] == noted["next"]
        assert quiet.batch() == []
        if is_due:
            assert quiet.checkpoint["notes"][SHARD(0)] >= noted["notes"][SHARD(0)]
    double.trim(name, SHARD(0), 10)
    double.put(name, [b"next"])
    assert Query(double, name, quiet.checkpoint).all() == ["next"], "the last record has expired, and nothing else"


def test_a_stream_made_again_is_a_loss(double: KinesisServer, name: str) -> None:
    query = Query(double, name, startingOffsets="earliest")
    double.put(name, numbered(10))
    query.all()
    start = query.checkpoint
    double.put(name, numbered(10, 10))
    query.all()
    end = query.checkpoint
    assert start is not None
    assert end is not None
    double.delete(name)
    double.make(name)
    double.put(name, [b"other"])
    with pytest.raises(DataLossError, match="was deleted and made again"):
        query.all()
    with pytest.raises(DataLossError, match="was deleted and made again"):
        Query(double, name, end).all()
    with pytest.raises(DataLossError, match="was deleted and made again"):
        Query(double, name, start).rows(start, end)
    assert Query(double, name, end, failOnDataLoss=False).all() == ["other"]


def test_a_start_by_number_and_by_time_is_exact(double: KinesisServer, name: str) -> None:
    double.put(name, numbered(10))
    double.age(name, timedelta(minutes=1))
    moment = int(time.time() * 1000)
    double.put(name, numbered(10, 10))
    everything = Query(double, name, startingOffsets="earliest")
    everything.planner.initial()
    end = everything.source.bounds()[SHARD(0)].next
    rows = [row for batch in everything.source.read(Range(SHARD(0), 0, end)) for row in batch.to_pylist()]
    number = rows[7]["sequence"]
    assert Query(double, name, startingOffsets=f'{{"{SHARD(0)}": {number}}}').all() == texts(numbered(13, 7))
    assert Query(double, name, startingTimestamp=moment - 1000).all() == texts(numbered(10, 10))
    assert rows[7] | {"timestamp": None} == {
        "value": b"v7", "headers": None, "timestamp": None, "stream": name, "sequence": number, "shard": SHARD(0),
        "partitionKey": "key",
    }  # fmt: skip


def test_lag_is_told_in_milliseconds(double: KinesisServer, name: str) -> None:
    query = Query(double, name, startingOffsets="earliest", maxRecordsPerTrigger=5)
    double.put(name, numbered(10))
    double.age(name, timedelta(minutes=1))
    query.batch()
    assert 60_000 <= query.planner.lag()["lagMs"] < 90_000
    query.batch()
    assert query.planner.lag() == {"lagMs": 0}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"stream": "no-such"}, "stream 'no-such' does not exist at .*region us-east-1"),
        ({"stream": "a b"}, "no name of a stream"),
        ({"endpoint": "http://127.0.0.1:1"}, "does not answer"),
        ({"minPartitions": "3"}, "'minPartitions' cannot be had for kinesis: a shard is read by one task"),
        ({"accessKeyId": "x", "secretAccessKeyFile": "/nowhere"}, "not both"),
        ({"startingOffsets": "AT_TIMESTAMP"}, "AT_TIMESTAMP needs a time"),
        ({"startingOffsets": "AT_TIMESTAMP soon"}, "'startingTimestamp' must be"),
        ({"credentialsProvider": "ASSUME_ROLE"}, "credentialsProvider=assume_role needs 'roleArn'"),
    ],
)
def test_what_is_wrong_is_told(double: KinesisServer, options: dict[str, str], expected: str) -> None:
    given = {**double.options("x"), **options}
    with pytest.raises((OptionError, ConnectError), match=expected):
        Kinesis.open_source(Kinesis.parse(given)).check()


def test_names_of_the_seed_are_taken(double: KinesisServer, name: str) -> None:
    given = {"aws.region": "us-east-1", "aws.endpoint": double.url, "aws.credentials.provider": "BASIC", "stream": name}
    given["aws.credentials.provider.basic.accesskeyid"] = "a"
    given["aws.credentials.provider.basic.secretkey"] = "b"
    Kinesis.open_source(Kinesis.parse(given)).check()


def test_credentials_come_from_where_the_options_say(
    double: KinesisServer, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    reach = {"endpoint": double.url, "stream": name}
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))

    def check(**options: str) -> None:
        Kinesis.open_source(Kinesis.parse({**reach, **options})).check()

    with pytest.raises(OptionError, match="needs a region"):
        check()
    with pytest.raises(OptionError, match="no credentials for Kinesis"):
        check(region="us-east-1")
    with pytest.raises(OptionError, match="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set"):
        check(region="us-east-1", credentialsProvider="ENV")
    with pytest.raises(OptionError, match=r"profile.*nobody"):
        check(region="us-east-1", profile="nobody")
    (tmp_path / "credentials").write_text("[somebody]\naws_access_key_id = a\naws_secret_access_key = b\n")
    (tmp_path / "config").write_text("[profile somebody]\nregion = us-east-1\n")
    check(profile="somebody")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    check(region="us-east-1", credentialsProvider="ENV")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", double.url)
    check(region="us-east-1", roleArn="arn:aws:iam::123456789012:role/reader", externalId="xyz")
    arn = f"arn:aws:kinesis:us-east-1:123456789012:stream/{name}"
    check(stream=arn)


def write(double: KinesisServer, stream: str, columns: dict[str, Any], **options: Any) -> Any:
    import pyarrow as pa

    given = {**double.options(stream), **{key: str(value) for key, value in options.items()}}
    batch = pa.record_batch(columns)
    sink = Kinesis.open_sink(Kinesis.parse_sink(given), batch.schema)
    return sink.write(iter([batch]), Origin("q", 3, 1))


def test_rows_that_are_refused_are_sent_again_and_no_others(double: KinesisServer, name: str) -> None:
    double.refuse(700)
    receipt = write(double, name, {"value": numbered(1234)})
    assert receipt.rows == 1234
    assert sorted(value for _, _, value in double.written(name)) == sorted(numbered(1234))


def test_rows_go_where_their_keys_say(double: KinesisServer, name: str) -> None:
    stream = f"{name}-two"
    double.make(stream, 2)
    write(double, stream, {"value": ["a", "b"], "explicitHashKey": ["0", str(2**128 - 1)]})
    assert [(shard, value) for shard, _, value in double.written(stream)] == [(SHARD(0), b"a"), (SHARD(1), b"b")]
    write(
        double, name, {"value": ["a", "b"], "partitionKey": ["mine", None], "who": ["x", "y"]}, partitionKey="of {who}"
    )
    assert [key for _, key, _ in double.written(name)] == ["mine", "of y"]
    write(double, stream, {"value": numbered(200)})
    assert len({key for _, key, _ in double.written(stream)}) == 200
    assert min(sum(shard == SHARD(n) for shard, _, _ in double.written(stream)) for n in range(2)) > 50


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (
            {"value": ["a", "b"], "explicitHashKey": ["0", "x"]},
            "row 1 of partition 1 of batch 3 .* explicitHashKey 'x'",
        ),
        ({"value": ["a", "b"], "partitionKey": ["k" * 257, "k"]}, "row 0 .* partition key of 257 characters"),
        ({"value": ["a", "x" * (1 << 20)]}, "does not take a row"),
        ({"value": ["a"], "headers": [None]}, "cannot write the column 'headers'"),
    ],
)
def test_a_row_that_cannot_be_stored_is_told(
    double: KinesisServer, name: str, columns: dict[str, Any], expected: str
) -> None:
    with pytest.raises(OptionError, match=expected):
        write(double, name, columns)
