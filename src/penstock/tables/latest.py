"""The table that a stream of changes makes, kept in Spark's state. Knows no server."""

from collections.abc import Sequence

from penstock.spark import needed  # noqa: F401 - before pyspark

# isort: split
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from penstock.errors import OptionError


def materialize(changes: DataFrame, keys: str | Sequence[str]) -> DataFrame:
    """The latest row of each key, from rows of `format("s2")` with mode=upsert and the columns `_action` and
    `_sequence`. `keys` is the column of the key, or several.

    Spark keeps one row for each key. With outputMode("complete") every trigger gives all of them; take `current` of it
    to leave out deleted rows. With outputMode("update") a trigger gives the keys that changed, and `_action` says
    whether the row was deleted.
    """
    keys = [keys] if isinstance(keys, str) else keys
    for name in (*keys, "_action", "_sequence"):
        if name not in changes.columns:
            raise OptionError(
                f"there is no column '{name}' to make a table with. There are: {', '.join(changes.columns)}. Name "
                "`_action STRING` and `_sequence BIGINT` in the schema of the read."
            )
    rest = [name for name in changes.columns if name not in keys]
    last = f.max_by(f.struct(*rest), f.col("_sequence")).alias("last")
    return changes.groupBy(*keys).agg(last).select(*keys, "last.*")


def current(table: DataFrame) -> DataFrame:
    """The rows of `materialize` that are not deleted."""
    return table.where(f.col("_action") == "u").drop("_action", "_sequence")
