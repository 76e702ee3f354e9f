"""The NATS protocol: frames, connections and subjects. Shared by Core NATS and JetStream."""
