"""The server of our own that demo and tests start."""

from pathlib import Path

import pytest

from penstock.errors import ConnectError
from penstock.testing.nats_server import NatsServer, free_port


def test_no_port_is_given_twice() -> None:
    """A server is often made long before it is started."""
    ports = [free_port() for _ in range(300)]
    assert len(set(ports)) == len(ports)


def test_a_server_whose_port_is_taken_does_not_count_the_other_as_itself(tmp_path: Path) -> None:
    with (
        NatsServer(tmp_path / "a") as first,
        pytest.raises(ConnectError, match=r"(?s)did not start: .*address already in use"),
    ):
        NatsServer(tmp_path / "b", port=first.port).start()
