"""What tests need of Kinesis: the double, or AWS itself where KINESIS_TEST_REGION names a region and there are
credentials. There, each test makes streams of its own, and deletes them at the end.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.testing.kinesis import KinesisDouble


class Cloud:
    """Streams on AWS, handled as those of the double. What only a double does skips its test."""

    def __init__(self, region: str, endpoint: str | None = None):
        import boto3

        self.region, self.endpoint = region, endpoint
        self._client = boto3.client("kinesis", region_name=region, endpoint_url=endpoint)
        self._made: set[str] = set()

    @property
    def url(self) -> str:
        return self.endpoint or f"https://kinesis.{self.region}.amazonaws.com"

    def options(self, stream: str) -> dict[str, str]:
        return {"endpoint": self.url, "region": self.region, "stream": stream}

    def make(self, stream: str, shards: int = 1) -> None:
        self._client.create_stream(StreamName=stream, ShardCount=shards)
        self._made.add(stream)
        self._settle(stream)

    def delete(self, stream: str) -> None:
        self._client.delete_stream(StreamName=stream, EnforceConsumerDeletion=True)
        self._made.discard(stream)
        self._client.get_waiter("stream_not_exists").wait(StreamName=stream)

    def put(self, stream: str, values: Sequence[bytes], shard: str | None = None, key: str = "key") -> None:
        hashes = {each["ShardId"]: each["HashKeyRange"]["StartingHashKey"] for each in self._shards(stream)}
        more = {"ExplicitHashKey": hashes[shard]} if shard else {}
        for value in values:  # one by one, as the order counts
            self._client.put_record(StreamName=stream, Data=value, PartitionKey=key, **more)

    def shards(self, stream: str) -> list[str]:
        return [each["ShardId"] for each in self._shards(stream)]

    def split(self, stream: str, shard: str) -> None:
        ends = next(each["HashKeyRange"] for each in self._shards(stream) if each["ShardId"] == shard)
        middle = (int(ends["StartingHashKey"]) + int(ends["EndingHashKey"])) // 2
        self._client.split_shard(StreamName=stream, ShardToSplit=shard, NewStartingHashKey=str(middle))
        self._settle(stream)

    def merge(self, stream: str, low: str, high: str) -> None:
        self._client.merge_shards(StreamName=stream, ShardToMerge=low, AdjacentShardToMerge=high)
        self._settle(stream)

    def written(self, stream: str) -> list[tuple[str, str, bytes]]:
        found = []
        for shard in self.shards(stream):
            given = {"StreamName": stream, "ShardId": shard, "ShardIteratorType": "TRIM_HORIZON"}
            iterator = self._client.get_shard_iterator(**given)["ShardIterator"]
            while iterator:
                page = self._client.get_records(ShardIterator=iterator)
                found += [(shard, record["PartitionKey"], record["Data"]) for record in page["Records"]]
                iterator = page.get("NextShardIterator") if page["MillisBehindLatest"] or page["Records"] else None
        return found

    def close(self) -> None:
        for stream in list(self._made):
            self.delete(stream)

    def throttle(self, calls: int) -> None:
        self._only_the_double(calls)

    def refuse(self, records: int) -> None:
        self._only_the_double(records)

    def answer_empty(self, pages: int) -> None:
        self._only_the_double(pages)

    def _only_the_double(self, count: int) -> None:
        if count:
            pytest.skip("AWS fails when it likes, not when it is told to")

    def __getattr__(self, name: str) -> Any:
        if name in ("trim", "forget", "age", "keep", "expire_iterators", "asked"):
            pytest.skip("on AWS records expire after a day")
        raise AttributeError(name)

    def _shards(self, stream: str) -> list[dict[str, Any]]:
        return list(self._client.list_shards(StreamName=stream)["Shards"])

    def _settle(self, stream: str) -> None:
        while (
            self._client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]["StreamStatus"]
            != "ACTIVE"
        ):
            time.sleep(1)


Kinesis = KinesisDouble | Cloud


@contextmanager
def server() -> Iterator[Kinesis]:
    """The double, or AWS."""
    region = os.environ.get("KINESIS_TEST_REGION")
    if region is None:
        with KinesisDouble() as double:
            yield double
        return
    cloud = Cloud(region, os.environ.get("KINESIS_TEST_ENDPOINT"))
    try:
        yield cloud
    finally:
        cloud.close()
