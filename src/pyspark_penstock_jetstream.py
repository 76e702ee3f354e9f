from penstock.connectors.jetstream import JetStream as DefaultSource  # noqa: F401 - Spark looks for this name
