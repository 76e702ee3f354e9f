"""The servers that the examples read and write, on the ports that they look at, with the orders of data/ in them.

    python examples/servers.py              a nats-server
    python examples/servers.py nats s2      and s2-lite; there are also iggy (a double of it) and kafka

They keep nothing, and end with Ctrl-C.
"""

import asyncio
import contextlib
import json
import signal
import sys
from pathlib import Path

import apache_iggy

from penstock.clients.jetstream.calls import Calls as JetStreamCalls
from penstock.clients.nats.client import Connection
from penstock.clients.s2.calls import Calls as S2Calls
from penstock.connectors.jetstream.options import JetStreamOptions
from penstock.connectors.s2.options import S2SourceOptions
from penstock.testing.iggy_double import IggyDouble
from penstock.testing.kafka import KafkaBroker
from penstock.testing.nats_server import NatsServer
from penstock.testing.s2_lite import S2Lite

ORDERS = (Path(__file__).parent / "data" / "orders.json").read_bytes().splitlines()


def nats(url: str) -> None:
    """Streams for the examples: ORDERS has orders, and one message that is not JSON."""
    options = JetStreamOptions.parse("jetstream", {"servers": url, "stream": "ORDERS"})
    connection = Connection(options)
    calls = JetStreamCalls(connection, options)
    for name in ("ORDERS", "SUMS", "LARGE", "DEAD"):
        body = {"name": name, "subjects": [f"{name.lower()}.>"], "storage": "memory", "allow_direct": True}
        calls.call(f"STREAM.CREATE.{name}", body)
    for order in [*ORDERS[:4], b"{not json", *ORDERS[4:]]:
        region = "eu" if order == b"{not json" else json.loads(order)["region"]
        connection.send(b"PUB orders.%s %d\r\n%s\r\n" % (region.encode(), len(order), order))
    while calls.stream("ORDERS").last <= len(ORDERS):
        pass
    connection.close()


def s2(url: str, basin: str) -> None:
    """A stream `orders`, with nothing in it."""
    calls = S2Calls(S2SourceOptions.parse("s2", {"endpoint": url, "basin": basin, "stream": "orders"}))
    calls.make("orders", {})
    calls.close()


def iggy(address: str) -> None:
    """A topic `shop/orders` of two partitions, with nothing in it."""

    async def make() -> None:
        login = apache_iggy.AutoLogin.username_password("iggy", "iggy")
        client = apache_iggy.IggyClient(apache_iggy.TcpConfig(server_address=address, auto_login=login))
        await client.connect()
        await client.create_stream("shop")
        await client.create_topic("shop", "orders", 2)

    asyncio.run(make())


def kafka(brokers: str) -> None:
    """A topic `orders` of two partitions, with orders in it."""
    from kafka import KafkaProducer  # pip install kafka-python
    from kafka.admin import KafkaAdminClient, NewTopic

    admin = KafkaAdminClient(bootstrap_servers=brokers)
    admin.create_topics([NewTopic("orders", 2, 1)])
    admin.close()
    producer = KafkaProducer(bootstrap_servers=brokers, acks="all")
    for number, order in enumerate(ORDERS):
        producer.send("orders", order, partition=number % 2)
    producer.flush()
    producer.close()


def main(names: list[str]) -> None:
    """Start servers, fill them, and wait for Ctrl-C."""
    with contextlib.ExitStack() as running:
        if "nats" in names:
            nats(running.enter_context(NatsServer(port=4222)).url)
        if "s2" in names:
            server = running.enter_context(S2Lite(port=8080, basin="examples"))
            s2(server.url, server.basin)
        if "iggy" in names:
            iggy(running.enter_context(IggyDouble(port=8090)).address)
        if "kafka" in names:
            kafka(running.enter_context(KafkaBroker(port=9092)).bootstrap)
        print(f"{', '.join(names)}: ready. Ctrl-C ends them.", flush=True)
        signal.sigwait([signal.SIGINT, signal.SIGTERM])


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    main(sys.argv[1:] or ["nats"])
