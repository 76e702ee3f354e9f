from penstock.connectors.kinesis import Kinesis as DefaultSource  # noqa: F401 - Spark looks for this name
