"""What tests need of Kafka: make topics, produce, read. By kafka-python, which knows nothing of Penstock.

It is pure Python, so there is a wheel for every machine. confluent-kafka is quicker, but is C, and writes to stderr
when a broker goes.
"""

import time
from collections.abc import Iterable
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

from penstock.testing.kafka import KafkaBroker

Key = bytes | None
Headers = list[tuple[str, bytes]]


class KafkaAdmin:
    """A connection with full rights. `produce` returns when every message is stored."""

    def __init__(self, broker: KafkaBroker):
        self.bootstrap = broker.bootstrap
        self.client = KafkaAdminClient(bootstrap_servers=self.bootstrap)

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        """Make a topic; the names of its settings have _ for Kafka's dots."""
        settings = {name.replace("_", "."): value for name, value in config.items()}
        self.client.create_topics([NewTopic(topic, partitions, 1, topic_configs=settings)])

    def produce(
        self,
        topic: str,
        messages: Iterable[tuple[Key, bytes] | tuple[Key, bytes, Headers]],
        partition: int | None = None,
    ) -> None:
        """Produce (key, value[, headers]): into that partition, or where their keys belong."""
        producer = KafkaProducer(bootstrap_servers=self.bootstrap, acks="all")
        sent = [
            producer.send(topic, key=key, value=value, headers=rest[0] if rest else [], partition=partition)
            for key, value, *rest in messages
        ]
        producer.flush()
        for future in sent:
            future.get(10)
        producer.close()

    def counts(self, topic: str) -> dict[int, int]:
        """How many messages each partition has."""
        consumer, partitions = self._consumer(topic)
        first, end = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
        consumer.close()
        return {at.partition: end[at] - first[at] for at in partitions}

    def read(self, topic: str) -> list[Any]:
        """Every message that is there, partition by partition: each has partition, offset, key, value, headers."""
        consumer, partitions = self._consumer(topic)
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        end = consumer.end_offsets(partitions)
        found: list[Any] = []
        deadline = time.monotonic() + 60
        while any(consumer.position(at) < end[at] for at in partitions):
            assert time.monotonic() < deadline, f"{len(found)} messages came of {topic}, and then no more"
            for messages in consumer.poll(timeout_ms=500).values():
                found += messages
        consumer.close()
        return sorted(found, key=lambda message: (message.partition, message.offset))

    def values(self, topic: str) -> list[bytes]:
        return [message.value for message in self.read(topic)]

    def _consumer(self, topic: str) -> tuple[Any, list[TopicPartition]]:
        consumer = KafkaConsumer(bootstrap_servers=self.bootstrap)
        return consumer, [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic))]

    def close(self) -> None:
        self.client.close()
