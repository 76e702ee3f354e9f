"""The broker that tests run on: what it keeps, where it listens, and what it leaves behind."""

import os
import socket
from pathlib import Path

import pytest

from kafka_servers import KafkaAdmin
from penstock.errors import ConnectError
from penstock.testing.kafka import KafkaBroker


def test_a_broker_keeps_its_topics_and_leaves_no_process(tmp_path: Path) -> None:
    broker = KafkaBroker(tmp_path)
    pids = []
    for round, end in enumerate((broker.stop, broker.kill, broker.stop)):
        with broker.start():  # which `with` does too
            assert broker.process is not None
            pids.append(broker.process.pid)
            admin = KafkaAdmin(broker)
            if round == 0:
                admin.create("kept", 2, retention_ms="-1")
            admin.produce("kept", [(None, b"%d" % round, [("round", b"%d" % round)])], partition=1)
            assert admin.counts("kept") == {0: 0, 1: round + 1}
            assert admin.values("kept") == [b"%d" % number for number in range(round + 1)]
            admin.close()
            end()
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def test_a_broker_listens_on_this_machine_only(kafka: KafkaBroker) -> None:
    for port in (kafka.port, kafka.controller_port):
        socket.create_connection(("127.0.0.1", port), 5).close()
        with pytest.raises(ConnectionRefusedError):  # whoever listens everywhere answers here too
            socket.create_connection(("127.0.0.2", port), 5)


def test_a_broker_that_cannot_start_says_why_and_is_gone(kafka: KafkaBroker, tmp_path: Path) -> None:
    second = KafkaBroker(tmp_path, port=kafka.port)
    with pytest.raises(ConnectError, match=rf"(?s)did not start on port {kafka.port}: .*Address already in use"):
        second.start()
    assert second.process is None
