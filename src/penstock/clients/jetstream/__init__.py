"""JetStream on a NATS connection: calls of its API, reading ranges, publishing rows. Knows no Spark."""
