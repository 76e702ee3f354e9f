import itertools
import json
import re
from datetime import timedelta
from typing import Any

import pytest
from pyspark.errors import PySparkException

from kinesis_servers import Kinesis as KinesisServer
from penstock.connectors.kinesis import Kinesis
from penstock.testing.conformance import Conformance, WriteConformance, texts

_runs = itertools.count(1)
FIRST = "shardId-000000000000"


class KinesisLog:
    """A stream of its own, whose only shard has another name than the suite gives it."""

    def __init__(self, double: KinesisServer):
        self.double, self.stream = double, f"conformance-{next(_runs)}"
        double.make(f"{self.stream}-out", 2)

    def make(self, shard: str) -> None:
        self.double.make(self.stream)

    def append(self, shard: str, values: list[str]) -> None:
        self.double.put(self.stream, [value.encode() for value in values], FIRST)

    def delete(self, shard: str) -> None:
        self.double.delete(self.stream)

    def options(self) -> dict[str, Any]:
        given = {**self.double.options(self.stream), "pollInterval": "50ms"}
        return {name: value for name, value in given.items() if "ccessKey" not in name}

    def target(self) -> dict[str, Any]:
        return self.double.options(f"{self.stream}-out")

    def written(self) -> list[str]:
        return [value.decode() for _, _, value in self.double.written(f"{self.stream}-out")]


class TestKinesis(Conformance):
    connector = Kinesis

    @pytest.fixture
    def log(self, kinesis: KinesisServer) -> KinesisLog:
        return KinesisLog(kinesis)

    def shard_of(self, row: Any) -> str:
        return str(row.shard)

    def test_one_shard_is_read_by_several_tasks(self) -> None:
        """It is not: Kinesis gives out 2 MB a second of a shard, however many ask."""
        self.store.append("shard", [f"v{i}" for i in range(100)])
        assert self.batch().rdd.getNumPartitions() == 1
        with pytest.raises(PySparkException, match="'minPartitions' cannot be had for kinesis"):
            self.batch(minPartitions=4)

    def test_a_shard_made_later_is_read_from_its_beginning(self) -> None:
        self.store.append("shard", ["a"])
        self.stream()
        self.store.double.split(self.store.stream, FIRST)
        self.store.double.put(self.store.stream, [b"b", b"c"], "shardId-000000000002")
        self.stream()
        self.store.double.put(self.store.stream, [b"d"], "shardId-000000000001")
        self.stream()
        assert sorted(texts(self.rows())) == ["b", "c", "d"]

    def test_rows_trimmed_unread_stop_the_query_with_the_numbers(self) -> None:
        """Without the numbers, which Kinesis does not tell."""
        self.store.append("shard", [f"v{i}" for i in range(20)])
        self.stream(startingOffsets="earliest")
        self.store.double.age(self.store.stream, timedelta(hours=26))
        self.store.append("shard", [f"w{i}" for i in range(20)])
        for checkpoint in (self.folder / "checkpoint" / "offsets").glob("[0-9]*"):
            text = checkpoint.read_text()
            checkpoint.write_text(re.sub(r"(\d{13})/24/", lambda note: f"{int(note[1]) - 26 * 3_600_000}/24/", text))
            (checkpoint.parent / f".{checkpoint.name}.crc").unlink(missing_ok=True)
        self.store.double.trim(self.store.stream, FIRST, 25)
        with pytest.raises(PySparkException, match=r"what came until .* was deleted unread.*failOnDataLoss=false"):
            self.stream()
        self.stream(failOnDataLoss="false")
        assert sorted(texts(self.rows())) == sorted([f"v{i}" for i in range(20)] + [f"w{i}" for i in range(5, 20)])

    def test_the_progress_event_tells_the_lag(self) -> None:
        self.store.append("shard", [f"v{i}" for i in range(30)])
        self.store.double.age(self.store.stream, timedelta(minutes=1))
        first = self.stream(startingOffsets="earliest", maxRecordsPerTrigger=10)[0].sources[0]
        assert 60_000 <= json.loads(first.latestOffset)["metrics"]["lagMs"] < 600_000

    def test_a_pushed_filter_never_changes_a_result(self) -> None:  # type: ignore[override] # it has no cases here
        self.store.append("shard", [f"v{i}" for i in range(40)])
        everything = self.batch()
        row = everything.orderBy("sequence").collect()[20]
        for where in (f"sequence > '{row.sequence}'", f"timestamp >= '{row.timestamp}'", "stream like 'no%'"):
            kept = everything.localCheckpoint().where(where)
            assert sorted(texts(everything.where(where))) == sorted(texts(kept))

    def test_a_schema_may_name_some_of_the_columns(self) -> None:
        self.store.append("shard", ["a"])
        reader = self.spark.read.format("kinesis").options(**self.store.options())
        assert reader.schema("partitionKey STRING, value BINARY").load().collect() == [("key", b"a")]
        with pytest.raises(PySparkException, match="column 'sequence' of kinesis is string, not int64"):
            reader.schema("sequence BIGINT").load().collect()


class TestKinesisWrites(WriteConformance):
    connector = Kinesis

    @pytest.fixture
    def log(self, kinesis: KinesisServer) -> KinesisLog:
        return KinesisLog(kinesis)
