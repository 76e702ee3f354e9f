"""From Core NATS, or from Kafka, to JetStream: what is there, what to make of it, and a proof that nothing is lost."""
