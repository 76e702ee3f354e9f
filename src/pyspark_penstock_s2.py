from penstock.connectors.s2 import S2Streams as DefaultSource  # noqa: F401 - Spark looks for this name
