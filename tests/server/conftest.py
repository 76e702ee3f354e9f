from collections.abc import Iterator

import pytest

from nats_servers import Admin
from penstock.errors import Disconnected
from penstock.kit.process_cache import close_all
from penstock.kit.retry import Retry


@pytest.fixture(autouse=True)
def _no_connection_outlives_its_test() -> Iterator[None]:
    yield
    close_all()


@pytest.fixture
def _new_ledger(admin: Admin) -> None:
    """Nobody has written anything yet: the tests of the sink all use the same name for their query."""
    if admin.calls.streams(["PENSTOCK_LEDGER"])["PENSTOCK_LEDGER"] is not None:
        admin.delete("PENSTOCK_LEDGER")


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is tried again. A clock would say so too, but not on a machine that has other things to do."""

    def again(self: Retry, error: Disconnected) -> None:
        raise AssertionError(f"{self.what} is tried again after: {error}")

    monkeypatch.setattr(Retry, "after", again)
