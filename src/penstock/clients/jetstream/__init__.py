"""JetStream's API, on a NATS connection: its calls, and reading and publishing many messages."""
