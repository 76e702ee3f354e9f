from penstock.connectors.journal import Journal as DefaultSource  # noqa: F401 - Spark looks for this name
