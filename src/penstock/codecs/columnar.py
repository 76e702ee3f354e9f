"""Formats that Spark does not read by itself, for DataFrames: bytes go to Python as a column of Arrow, and come back as
columns. Knows Spark's functions; no format.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from penstock.arrow.ddl import sql
from penstock.codecs import ERROR
from penstock.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class Decoder(Protocol):
    """Bytes to a struct of columns, with `_error` behind them. It travels to Spark's workers."""

    @property
    def columns(self) -> pa.Schema:
        """The columns, without `_error`."""

    def __call__(self, values: pa.Array) -> pa.Array:
        """One struct for each value."""


def decoded(df: "DataFrame", decoder: Decoder, value: str) -> "DataFrame":
    """`df` with the decoded columns and `_error` in place of the column `value`."""
    from pyspark.sql import functions as f

    columns = decoder.columns
    kept = [name for name in df.columns if name not in (value, ERROR)]
    for name in (ERROR, *kept):
        if name in columns.names:
            raise OptionError(f"the schema has a column '{name}', which is there already: call it otherwise.")
    types = ", ".join([*(f"`{each.name}`: {sql(each.type)}" for each in columns), f"{ERROR}: STRING"])
    if not kept:
        # Without other columns that would have to go through Python too, Spark takes rows at half the cost.
        return df.select(f.col(f"`{value}`").cast("binary")).mapInArrow(_rows(decoder), types)
    read = _udf(decoder, f"STRUCT<{types}>")
    others = [f.col(f"`{name}`") for name in kept]
    rows = df.select(*others, read(f.col(f"`{value}`").cast("binary")).alias("__row"))
    return rows.select(*others, *(f.col(f"__row.`{name}`").alias(name) for name in (*columns.names, ERROR)))


def encoded(df: "DataFrame", encoder: Callable[[pa.Array], pa.Array], names: list[str]) -> "Column":
    """The bytes of each row, made of some columns."""
    from pyspark.sql import functions as f

    value: Column = _udf(encoder, "BINARY")(f.struct(*(f.col(f"`{name}`") for name in names)))
    return value


def _rows(decoder: Decoder) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            structs = decoder(batch.column(0))
            yield pa.RecordBatch.from_arrays(structs.flatten(), schema=pa.schema(list(structs.type)))

    return rows


def _udf(work: Callable[[pa.Array], pa.Array], type: str) -> Any:
    from pyspark.sql.pandas.functions import arrow_udf

    def column(values: pa.Array) -> pa.Array:
        return work(values)

    return arrow_udf(column, type)  # type: ignore[call-overload] # its stub wants a kind, which the hints tell
