from penstock.connectors.nats import CoreNats as DefaultSource  # noqa: F401 - Spark looks for this name
