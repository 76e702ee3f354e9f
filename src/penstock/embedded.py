"""The old name of `penstock.testing`."""

from penstock.testing.nats_server import NatsServer, free_port

__all__ = ["NatsServer", "free_port"]
