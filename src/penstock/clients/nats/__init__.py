"""The NATS protocol: wire, connection and subjects, shared by Core NATS and JetStream."""
