"""NATS, JetStream, S2 and Iggy streams for Apache Spark."""

__version__ = "0.1.0"
