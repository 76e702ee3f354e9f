"""The ends of Kafka's topics, asked of its brokers by kafka-python, its only user. Knows options of Spark's Kafka
source; knows no Spark.
"""

import contextlib
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.errors import ConnectError, OptionError
from penstock.jobs.lag import Standing, stand
from penstock.planning.checkpoint import Checkpoint
from penstock.planning.positions import Bound, Bounds, lost

# Seconds for the brokers to answer, and to give the oldest unread records.
TIMEOUT, READING = 10.0, 3.0
# Kafka's names of settings, and those of kafka-python. All others have no say in where a topic ends.
_NAMES = {
    "kafka.security.protocol": "security_protocol",
    "kafka.sasl.mechanism": "sasl_mechanism",
    "kafka.ssl.truststore.location": "ssl_cafile",
    "kafka.ssl.keystore.location": "ssl_certfile",
}


class KafkaHeads:
    """The ends of topics."""

    def __init__(self, given: Mapping[str, str]):
        self.settings = settings(given)
        self.topics = [name.strip() for name in given.get("subscribe", "").split(",") if name.strip()]

    def shards(self) -> set[str]:
        """The partitions of the topics in `subscribe`, as the checkpoint names them."""
        consumer = self._open()
        try:
            return set(self._bounds(consumer, self.topics))
        finally:
            consumer.close(autocommit=False)

    def compare(self, source: str, at: Checkpoint) -> tuple[list[Standing], list[str]]:
        """Where a query stands. Reads one record of each partition that is behind, and commits nothing."""
        topics = sorted({shard.rpartition("-")[0] for shard in at.positions})
        consumer = self._open()
        try:
            bounds = self._bounds(consumer, topics)
            standings = stand(source, "kafka", at.positions, bounds, lost(at.positions, bounds))
            return self._aged(consumer, standings), []
        finally:
            consumer.close(autocommit=False)

    def _open(self) -> Any:
        try:
            from kafka import KafkaConsumer
            from kafka.errors import KafkaError
        except ImportError:
            raise OptionError(
                "there is no client of Kafka in this Python, to ask brokers where topics end. Install it: "
                "pip install 'penstock[kafka]'."
            ) from None
        millis = int(TIMEOUT * 1000)
        try:
            return KafkaConsumer(
                **self.settings, enable_auto_commit=False, allow_auto_create_topics=False, max_poll_records=1,
                bootstrap_timeout_ms=millis,
            )  # fmt: skip
        except (KafkaError, OSError, ValueError, AssertionError, TypeError) as error:
            raise self._away(error) from None

    def _bounds(self, consumer: Any, topics: Sequence[str]) -> Bounds:
        from kafka import TopicPartition
        from kafka.errors import KafkaError

        try:
            there = consumer.topics()
            parts = [
                TopicPartition(topic, number)
                for topic in topics
                if topic in there
                for number in sorted(consumer.partitions_for_topic(topic) or ())
            ]
            first, end = consumer.beginning_offsets(parts), consumer.end_offsets(parts)
        except (KafkaError, OSError, AssertionError) as error:
            raise self._away(error) from None
        return {f"{part.topic}-{part.partition}": Bound(first[part], end[part]) for part in parts}

    def _aged(self, consumer: Any, standings: Sequence[Standing]) -> list[Standing]:
        """The standings, with the age of the oldest unread record."""
        from kafka import TopicPartition
        from kafka.errors import KafkaError

        starts = {}
        for each in standings:
            if each.records:
                topic, _, number = each.shard.rpartition("-")
                starts[TopicPartition(topic, int(number))] = each.resumes
        moments: dict[str, float] = {}
        deadline = time.monotonic() + READING
        with contextlib.suppress(KafkaError):  # who may not read still knows how many records there are
            consumer.assign(list(starts))
            for part, start in starts.items():
                consumer.seek(part, start)
            while len(moments) < len(starts) and time.monotonic() < deadline:
                for part, records in consumer.poll(timeout_ms=500).items():
                    moments[f"{part.topic}-{part.partition}"] = records[0].timestamp / 1000
                    consumer.pause(part)
        return [_with_age(each, moments) for each in standings]

    def _away(self, error: Exception) -> ConnectError:
        servers = self.settings["bootstrap_servers"]
        return ConnectError(f"the brokers at {servers} do not tell where topics end: {error}. Check their address.")


def _with_age(standing: Standing, moments: Mapping[str, float]) -> Standing:
    if standing.records == 0:
        return replace(standing, seconds=0.0)
    if standing.shard not in moments:
        return standing
    return replace(standing, seconds=max(0.0, time.time() - moments[standing.shard]))


def settings(given: Mapping[str, str]) -> dict[str, Any]:
    """What kafka-python takes, from options of Spark's Kafka source."""
    servers = given.get("kafka.bootstrap.servers")
    if not servers:
        raise OptionError(
            "say where the brokers are: kafka.bootstrap.servers=localhost:9092, as the query's own options do."
        )
    found: dict[str, Any] = {"bootstrap_servers": servers}
    found |= {_NAMES[name]: value for name, value in given.items() if name in _NAMES}
    login = given.get("kafka.sasl.jaas.config", "")
    for key, name in (("username", "sasl_plain_username"), ("password", "sasl_plain_password")):
        if match := re.search(rf'\b{key}\s*=\s*"?([^";]+)"?', login):
            found[name] = match[1]
    return found
