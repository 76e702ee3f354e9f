"""NATS connections that a process uses again. Knows which options make two connections interchangeable."""

from collections.abc import Hashable

from penstock.clients.nats.client import Connection
from penstock.clients.nats.options import NatsOptions
from penstock.kit import process_cache as pool


def connect(options: NatsOptions) -> Connection:
    """An idle connection of this process that is still alive, or a new one."""
    return pool.take(key(options), lambda: Connection(options))


def keep(connection: Connection) -> None:
    """Give a connection back after use, for the next task of this process."""
    pool.keep(key(connection.options), connection)


def key(options: NatsOptions) -> Hashable:
    """Equal for connections to the same servers as the same user."""
    return tuple(getattr(options, name) for name in NatsOptions.model_fields)
