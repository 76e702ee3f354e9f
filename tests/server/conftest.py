from collections.abc import Iterator

import pytest
from jetstream_tools import close_idle


@pytest.fixture(autouse=True)
def _no_connection_outlives_its_test() -> Iterator[None]:
    yield
    close_idle()
