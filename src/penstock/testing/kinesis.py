"""A double of Kinesis: moto's server on a port of its own, which boto3 speaks to as to AWS. Where moto differs from AWS
in what readers rely on, it is put right here. It can also be told to fail as AWS does.
"""

import base64
import hashlib
import itertools
import logging
import random
import threading
from collections.abc import Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self

from moto.core.exceptions import JsonRESTError
from moto.core.utils import utcnow
from moto.kinesis import models
from moto.kinesis.exceptions import InvalidArgumentError
from moto.kinesis.utils import decompose_shard_iterator
from moto.server import ThreadedMotoServer

ACCOUNT = "123456789012"
# Moto has one set of streams for a process and region, so each double has a region of its own.
REGIONS = ["us-east-1", "us-east-2", "us-west-1", "us-west-2", "eu-west-1", "eu-west-2", "eu-central-1"]
# The most that AWS puts into one answer.
_PAGE_BYTES, _PAGE_RECORDS = 10 << 20, 10_000
# Sequence numbers of AWS have 56 digits, and do not tell how many records lie between them.
_beginnings = itertools.count(49_600_000)


class _Shard(models.Shard):
    """A shard with sequence numbers like those of AWS."""

    def __init__(self, *given: Any, **named: Any):
        super().__init__(*given, **named)
        self.start = next(_beginnings) * 10**48
        self.newest = self.start
        self.issued = {self.start}
        self._lock = threading.Lock()

    def put_record(self, partition_key: str, data: str, explicit_hash_key: str) -> str:
        with self._lock:  # requests have a thread each, and two records of one number would be one
            self.newest += random.randrange(1, 10**20)
            record = models.Record(partition_key, data, self.newest, explicit_hash_key)
            moment = record.created_at_datetime
            record.created_at_datetime = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
            self.records[self.newest] = record
            self.issued.add(self.newest)
            return str(self.newest)

    def get_records(self, last_sequence_id: str, limit: int | None) -> tuple[list[models.Record], int, int]:
        waiting = [record for number, record in self.records.items() if number > int(last_sequence_id)]
        page: list[models.Record] = []
        size = 0
        for record in waiting[: limit or _PAGE_RECORDS]:
            size += len(record.data) * 3 // 4
            if page and size > _PAGE_BYTES:
                break
            page.append(record)
        left = waiting[len(page) :]
        age = (utcnow() - left[0].created_at_datetime).total_seconds() if left else 0.0
        last = page[-1].sequence_number if page else int(last_sequence_id)
        return page, last, max(1, int(age * 1000)) if left else 0

    def get_sequence_number_at(self, at_timestamp: float) -> int:
        before = [n for n, record in self.records.items() if record.created_at_datetime.timestamp() < at_timestamp]
        return before[-1] if before else 0

    def to_json(self) -> dict[str, Any]:
        described = super().to_json()
        described["SequenceNumberRange"]["StartingSequenceNumber"] = str(self.start)
        return described


class _Stream(models.Stream):
    """A stream whose records stay in their shard when it is split or merged."""

    def is_created(self) -> bool:
        return True

    def init_shards(self, shard_count: int) -> None:
        self.shard_count = shard_count
        ends = [2**128 * number // shard_count for number in range(shard_count + 1)]
        for number, (low, high) in enumerate(itertools.pairwise(ends)):
            shard = _Shard(number, low, high - 1)
            self.shards[shard.shard_id] = shard

    def split_shard(self, shard_to_split: str, new_starting_hash_key: str) -> None:
        shard, middle = self.shards[shard_to_split], int(new_starting_hash_key)
        self._follow([shard], (shard.starting_hash, middle - 1), (middle, shard.ending_hash))

    def merge_shards(self, shard_to_merge: str, adjacent_shard_to_merge: str) -> None:
        low, high = self.shards[shard_to_merge], self.shards[adjacent_shard_to_merge]
        self._follow([low, high], (low.starting_hash, high.ending_hash))

    def _follow(self, parents: list[models.Shard], *ranges: tuple[int, int]) -> None:
        """Close shards, and let others follow them."""
        adjacent = parents[1].shard_id if len(parents) > 1 else None
        for low, high in ranges:
            number = max(shard._shard_id for shard in self.shards.values()) + 1
            shard = _Shard(number, low, high, parents[0].shard_id, adjacent)
            self.shards[shard.shard_id] = shard
        for parent in parents:
            parent.is_open = False

    def get_shard_for_key(self, partition_key: str, explicit_hash_key: str) -> models.Shard | None:
        digest = hashlib.md5(partition_key.encode(), usedforsecurity=False).hexdigest()
        key = int(explicit_hash_key) if explicit_hash_key else int(digest, 16)
        return next(s for s in self.shards.values() if s.is_open and s.starting_hash <= key <= s.ending_hash)


class _Backend(models.KinesisBackend):
    """Streams as above, and faults to order."""

    __module__ = models.__name__  # by which moto finds the service that a backend belongs to

    def __init__(self, region: str):
        super().__init__(region, ACCOUNT)
        self.throttled = 0
        self.refused = 0
        self.empty_pages = 0
        self.life = 0  # of iterators
        self.asked: list[str] = []

    def create_stream(
        self,
        stream_name: str,
        shard_count: int,
        stream_mode: dict[str, str] | None = None,
        retention_period_hours: int | None = None,
    ) -> models.Stream:
        stream = _Stream(stream_name, shard_count or 1, stream_mode, retention_period_hours, ACCOUNT, self.region_name)
        self.streams[stream_name] = stream
        return stream

    def get_shard_iterator(
        self,
        stream_arn: str | None,
        stream_name: str | None,
        shard_id: str,
        shard_iterator_type: str,
        starting_sequence_number: int,
        at_timestamp: datetime,
    ) -> str:
        self.asked.append(f"iterator {shard_id} {shard_iterator_type}")
        stream = self.describe_stream(stream_arn, stream_name)
        shard = stream.shards.get(shard_id)
        if shard is not None and shard_iterator_type.endswith("SEQUENCE_NUMBER"):
            assert isinstance(shard, _Shard)
            if int(starting_sequence_number) not in shard.issued:
                raise InvalidArgumentError(f"Invalid StartingSequenceNumber {starting_sequence_number}.")
        iterator = super().get_shard_iterator(
            stream_arn, stream.stream_name, shard_id, shard_iterator_type, starting_sequence_number, at_timestamp
        )
        return f"{self.life}|{stream.creation_datetime.timestamp()}|{iterator}"

    def get_records(self, stream_arn: str | None, shard_iterator: str, limit: int | None) -> Any:
        life, born, iterator = shard_iterator.split("|", 2)
        name, shard_id, _ = decompose_shard_iterator(iterator)
        self.asked.append(f"records {shard_id}")
        stream = self.describe_stream(None, name)
        if int(life) < self.life or float(born) != stream.creation_datetime.timestamp():
            raise JsonRESTError("ExpiredIteratorException", "Iterator expired. The iterator was created long ago.")
        if self.throttled:
            self.throttled -= 1
            raise JsonRESTError("ProvisionedThroughputExceededException", f"Rate exceeded for shard {shard_id}.")
        if self.empty_pages:
            self.empty_pages -= 1
            return shard_iterator, [], 1000 * (self.empty_pages + 1)
        following, records, behind = super().get_records(None, iterator, limit)
        shard = stream.shards[shard_id]
        is_over = not shard.is_open and behind == 0
        return None if is_over else f"{life}|{born}|{following}", records, behind

    def put_records(self, stream_arn: str, stream_name: str, records: list[dict[str, Any]]) -> dict[str, Any]:
        """The first of the records that are to be refused are, and the others stored."""
        refused = records[: self.refused]
        self.refused -= len(refused)
        answer = super().put_records(stream_arn, stream_name, records[len(refused) :])
        failed = {"ErrorCode": "ProvisionedThroughputExceededException", "ErrorMessage": "Rate exceeded for shard."}
        answer["Records"] = [dict(failed) for _ in refused] + answer["Records"]
        answer["FailedRecordCount"] = len(refused)
        return answer


class KinesisDouble:
    """A server with streams of its own, as long as its context lasts. A process can have a few of them."""

    def __init__(self) -> None:
        self._server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        taken = [region for region, kept in models.kinesis_backends[ACCOUNT].items() if isinstance(kept, _Backend)]
        self.region = next(region for region in REGIONS if region not in taken)
        self._backend = _Backend(self.region)
        models.kinesis_backends[ACCOUNT][self.region] = self._backend
        self.url = ""

    def __enter__(self) -> Self:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # else a line for each request
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.url = f"http://{host}:{port}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop()
        del models.kinesis_backends[ACCOUNT][self.region]

    def options(self, stream: str) -> dict[str, str]:
        """What a query needs to find a stream."""
        keys = {"accessKeyId": "testing", "secretAccessKey": "testing"}
        return {"endpoint": self.url, "region": self.region, "stream": stream, **keys}

    def make(self, stream: str, shards: int = 1) -> None:
        """A stream, with shards of equal size."""
        self._backend.create_stream(stream, shards)

    def delete(self, stream: str) -> None:
        """Delete a stream."""
        self._backend.delete_stream(None, stream)

    def put(self, stream: str, values: Sequence[bytes], shard: str | None = None, key: str = "key") -> None:
        """Store records: in an open shard, or wherever their key belongs."""
        of_stream = self._backend.describe_stream(None, stream)
        explicit = str(of_stream.shards[shard].starting_hash) if shard else ""
        for value in values:
            of_stream.put_record(key, explicit, base64.b64encode(value).decode())

    def shards(self, stream: str) -> list[str]:
        """The ids of the shards, those that are closed as well."""
        return list(self._backend.describe_stream(None, stream).shards)

    def split(self, stream: str, shard: str) -> None:
        """Close a shard. Two follow it."""
        of_stream = self._backend.describe_stream(None, stream)
        ends = of_stream.shards[shard]
        of_stream.split_shard(shard, str((ends.starting_hash + ends.ending_hash) // 2))

    def merge(self, stream: str, low: str, high: str) -> None:
        """Close two shards side by side. One follows them."""
        self._backend.describe_stream(None, stream).merge_shards(low, high)

    def trim(self, stream: str, shard: str, count: int) -> None:
        """Delete the oldest records of a shard, as if they had expired."""
        records = self._backend.describe_stream(None, stream).shards[shard].records
        for number in list(records)[:count]:
            del records[number]

    def forget(self, stream: str, shard: str) -> None:
        """Delete a closed shard, as if all of its records had expired."""
        del self._backend.describe_stream(None, stream).shards[shard]

    def keep(self, stream: str, hours: int) -> None:
        """Change for how long records are kept."""
        self._backend.describe_stream(None, stream).retention_period_hours = hours

    def age(self, stream: str, by: timedelta) -> None:
        """Make all records older."""
        for shard in self._backend.describe_stream(None, stream).shards.values():
            for record in shard.records.values():
                record.created_at_datetime -= by

    def written(self, stream: str) -> list[tuple[str, str, bytes]]:
        """Shard, key and value of all records."""
        return [
            (name, record.partition_key, base64.b64decode(record.data))
            for name, shard in self._backend.describe_stream(None, stream).shards.items()
            for record in shard.records.values()
        ]

    def throttle(self, calls: int) -> None:
        """Refuse the next calls of GetRecords: too many at once."""
        self._backend.throttled = calls

    def refuse(self, records: int) -> None:
        """Refuse the next records of PutRecords, while those beside them are stored."""
        self._backend.refused = records

    def answer_empty(self, pages: int) -> None:
        """Answer the next calls of GetRecords with no record, though there are some: AWS does so now and then."""
        self._backend.empty_pages = pages

    def expire_iterators(self) -> None:
        """Let all iterators expire, as after five minutes."""
        self._backend.life += 1

    @property
    def asked(self) -> list[str]:
        """What was asked of shards: `iterator SHARD TYPE` and `records SHARD`."""
        return self._backend.asked
