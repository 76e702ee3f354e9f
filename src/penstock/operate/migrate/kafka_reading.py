"""Reads a topic by kafka-python, which is imported when it is needed, and the stream that it was copied to. Commits
nothing, and takes nothing from any consumer group. Knows both servers; compares nothing.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from penstock.clients.jetstream import engines
from penstock.clients.jetstream.api import StreamInfo
from penstock.clients.jetstream.calls import Calls
from penstock.clients.nats.client import Connection
from penstock.clients.nats.options import NatsOptions
from penstock.errors import ConnectError, OptionError, nearest
from penstock.kit.masking import harmless
from penstock.kit.retry import Retry
from penstock.operate.migrate.kafka_copy import Copy, Record, record
from penstock.operate.migrate.kafka_proof import PartitionVerdict, Side, compare

# Seconds for the brokers to answer, and the longest without a record that is due.
TIMEOUT, STALLED = 10.0, 30.0
# How often a stream is looked at again while the copy goes on; how long JetStream may stay away.
STEP, AWAY = 0.5, 60.0
Tell = Callable[[str], None]


def read_topic(settings: Mapping[str, Any], topic: str, tell: Tell) -> tuple[dict[int, Side], dict[int, int]]:
    """The records of a topic by partition, and the ends that the partitions had when this began. Records of
    transactions that were aborted, or are not yet decided, are none.
    """
    try:
        from kafka import KafkaConsumer, TopicPartition
        from kafka.errors import KafkaError
    except ImportError:
        raise OptionError(
            "there is no client of Kafka in this Python, to read topics with. Install it: pip install "
            "'penstock[kafka]'."
        ) from None
    where = settings["bootstrap_servers"]
    try:
        consumer = KafkaConsumer(
            **{"isolation_level": "read_committed"} | dict(settings), enable_auto_commit=False,
            allow_auto_create_topics=False, bootstrap_timeout_ms=int(TIMEOUT * 1000),
        )  # fmt: skip
    except (KafkaError, OSError, ValueError, AssertionError, TypeError) as error:
        raise _away(where, error) from None
    try:
        there = consumer.topics()
        if topic not in there:
            raise OptionError(f"Kafka has no topic '{topic}'. {nearest(topic, there)}")
        parts = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())]
        ends = {part.partition: end for part, end in consumer.end_offsets(parts).items()}
        consumer.assign(parts)
        consumer.seek_to_beginning(*parts)
        sides = {part.partition: Side() for part in parts}
        progress, count = time.monotonic(), 0
        while late := [part for part in parts if consumer.position(part) < ends[part.partition]]:
            came = consumer.poll(timeout_ms=500)
            for part, records in came.items():
                for each in records:
                    if each.offset < ends[part.partition]:
                        sides[part.partition].add(each.offset, _record(each).checksum())
                        count += 1
            if came:
                progress = time.monotonic()
                tell(f"{count:,} records of {topic} read from Kafka")
            elif time.monotonic() - progress > STALLED:
                raise ConnectError(
                    f"Kafka gives nothing more of {topic}, partition {late[0].partition}, though it ends at "
                    f"{ends[late[0].partition]:,}. Perhaps a transaction is open: wait for it, and prove again."
                )
    except (KafkaError, AssertionError) as error:
        raise _away(where, error) from None
    finally:
        consumer.close(autocommit=False)
    return sides, ends


def _record(each: Any) -> Record:
    return Record(each.key, each.value, list(each.headers or ()), each.timestamp if each.timestamp is not None else -1)


def _away(where: Any, error: Exception) -> ConnectError:
    return ConnectError(f"the brokers at {harmless(where)} do not answer: {harmless(error)}. Check their address.")


class Copied:
    """The records that a stream has of a topic, read bit by bit."""

    def __init__(self, options: NatsOptions, copy: Copy):
        self.options, self.copy = options, copy
        self.sides: dict[int, Side] = {}
        self.foreign = 0  # messages that are of no record of the topic
        self._next = 1

    def read(self, tell: Tell) -> None:
        """What came since the last time. After a lost connection it goes on where it was."""
        Retry(f"reading '{self.copy.stream}'", timeout=AWAY).run(lambda: self._read(tell))

    def _read(self, tell: Tell) -> None:
        connection = Connection(self.options)
        try:
            calls = Calls(connection, self.options)
            info: StreamInfo = calls.stream(self.copy.stream)
            if info.retention != "limits":
                raise OptionError(
                    f"stream '{info.name}' has the retention '{info.retention}': to read it would take messages from "
                    "its consumers. Only a stream with 'limits' is proven."
                )
            start = max(self._next, info.first)
            if start > info.last:
                return
            for rows in engines.consumer(calls, info.name, start, info.last + 1, (), info.most_idle):
                for pairs, body in zip(rows.headers().to_pylist(), rows.value.to_pylist(), strict=True):
                    self._add([(pair["key"], pair["value"]) for pair in pairs or ()], body)
                self._next = rows.next
                tell(f"{rows.next - 1:,} of {info.last:,} messages of {info.name} read")
        finally:
            connection.close()

    def _add(self, pairs: list[tuple[str, bytes]], body: bytes) -> None:
        found = record(self.copy.topic, pairs, body)
        if found is None:
            self.foreign += 1
            return
        self.sides.setdefault(found.partition, Side()).add(found.offset, found.record.checksum())


def prove(
    options: NatsOptions, settings: Mapping[str, Any], copy: Copy, wait: float, tell: Tell
) -> tuple[list[PartitionVerdict], int]:
    """A verdict on each partition, and how many messages of the stream are of no record. While records are missing, the
    stream is read on for up to `wait` seconds: the copy may still run.
    """
    theirs, ends = read_topic(settings, copy.topic, tell)
    ours = Copied(options, copy)
    deadline = time.monotonic() + wait
    while True:
        ours.read(tell)
        verdicts = [
            compare(copy.topic, partition, side, ours.sides.get(partition, Side()), ends[partition])
            for partition, side in sorted(theirs.items())
        ]
        if not any(verdict.missing for verdict in verdicts) or time.monotonic() + STEP > deadline:
            return verdicts, ours.foreign
        time.sleep(STEP)
