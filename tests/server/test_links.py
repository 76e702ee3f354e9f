"""Messages that servers lose on the way to one another, while the client's own connection stands."""

import contextlib
import time
from pathlib import Path

import pyarrow as pa
import pytest
from jetstream_sources import opened, sequences, table, until, whole

from nats_servers import Admin
from penstock.errors import PenstockError
from penstock.testing.nats_server import NatsServer, free_port
from penstock.testing.proxy import Proxy


@pytest.mark.parametrize("engine", ["consumer", "direct"])
@pytest.mark.parametrize(
    "lost", [range(1, 2), range(100, 101), range(100, 180), range(295, 301), range(300, 301)], ids=str
)
@pytest.mark.parametrize("filters", ["", "{s}.a", "{s}.a,{s}.b"])
def test_messages_that_are_lost_on_their_way_are_read_again(
    admin: Admin, nats: NatsServer, stream: str, engine: str, lost: range, filters: str
) -> None:
    admin.create(stream)
    admin.publish((f"{stream}.a", b"%d" % i) for i in range(300))
    seen = 0

    def lose(line: bytes, body: bytes) -> bytes:
        nonlocal seen
        seen += b"$JS.ACK." in line or b"Nats-Sequence: " in body
        return b"" if seen in lost and (b"$JS.ACK." in line or b"Nats-Sequence: " in body) else line + body

    options = {"readEngine": engine, "subjects": filters.format(s=stream), "requestTimeout": "1s"}
    with Proxy(nats.port, frames=lose) as proxy, opened(proxy.url, stream=stream, **options) as source:
        assert sequences(table(source, whole(source, stream))) == list(range(1, 301))
    assert seen > 300


@pytest.mark.parametrize("engine", ["consumer", "direct"])
def test_a_link_between_servers_that_breaks_costs_no_row(tmp_path: Path, engine: str) -> None:
    """The client is on a leaf, the stream on the hub. What is under way on the link is gone when it breaks, and the
    consumer, which keeps no state, goes on behind it as if nothing had happened.
    """
    count, port = 30_000, free_port()
    store = f'jetstream {{ domain: hub, store_dir: "{tmp_path / "hub"}" }}'
    hub = f'{store}\nleafnodes {{ no_advertise: true, listen: "127.0.0.1:{port}" }}'
    with contextlib.ExitStack() as stack:
        far = stack.enter_context(NatsServer(tmp_path / "a", config=hub))
        link = stack.enter_context(Proxy(port, rate=20e6))
        remote = f'leafnodes {{ reconnect: "100ms", remotes: [ {{ url: "nats-leaf://127.0.0.1:{link.port}" }} ] }}'
        near = stack.enter_context(NatsServer(tmp_path / "b", config=remote))
        admin = Admin(far.url)
        stack.callback(admin.close)
        admin.create("S")
        admin.publish(("S.n", b"%d " % i + b"x" * 300) for i in range(count))
        source = stack.enter_context(opened(near.url, stream="S", domain="hub", readEngine=engine, requestTimeout="3s"))

        def is_there() -> bool:
            with contextlib.suppress(PenstockError):
                return bool(source.bounds())
            return False

        until(is_there, 30)
        batches = []
        for number, rows in enumerate(source.read(whole(source, "S"))):
            batches.append(rows)
            if number in (0, 3):
                link.cut()
                time.sleep(1)  # as a slow task does: the link is back before it asks for more
    assert sequences(pa.Table.from_batches(batches)) == list(range(1, count + 1))
