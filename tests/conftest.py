import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import Admin, server
from penstock.embedded import NatsServer

_names = itertools.count(1)


@pytest.fixture(scope="session")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """One server for all tests that do not harm it."""
    with server(tmp_path_factory.mktemp("nats")) as (running, _):
        yield running


@pytest.fixture
def admin(nats: NatsServer) -> Iterator[Admin]:
    connection = Admin(nats.url)
    yield connection
    connection.close()


@pytest.fixture
def stream() -> str:
    """A stream name that no other test uses."""
    return f"S{next(_names)}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path
