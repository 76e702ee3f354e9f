from penstock.connectors.iggy import Iggy as DefaultSource  # noqa: F401 - Spark looks for this name
