"""Formats that Spark does not read by itself, for DataFrames: bytes go to Python as a column of Arrow, and come back as
columns. Knows Spark's functions; no format.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from penstock.arrow.ddl import sql
from penstock.codecs import ERROR
from penstock.errors import OptionError
from penstock.spark.process import settle_in

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField

# Types that are the same after a way through Arrow, by Spark's names.
_PLAIN = {
    "boolean", "byte", "short", "integer", "long", "float", "double", "decimal", "string", "binary", "date",
    "timestamp", "timestamp_ntz",
}  # fmt: skip


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
    from pyspark.sql.types import StructType

    columns = decoder.columns
    kept = [name for name in df.columns if name not in (value, ERROR)]
    for name in (ERROR, *kept):
        if name in columns.names:
            raise OptionError(f"the schema has a column '{name}', which is there already: call it otherwise.")
    types = ", ".join([*(f"`{each.name}`: {sql(each.type)}" for each in columns), f"{ERROR}: STRING"])
    others = [f.col(f"`{name}`") for name in kept]
    beside = _can_go_along(df, kept)
    if beside is not None:
        # For a function of whole batches Spark takes half of what it takes to keep rows and join columns to them.
        decoded_types = StructType.fromDDL(types)
        assert isinstance(decoded_types, StructType)
        given = df.select(f.col(f"`{value}`").cast("binary"), *others)
        return given.mapInArrow(_rows(decoder), StructType([*beside, *decoded_types.fields]))
    read = _udf(decoder, f"STRUCT<{types}>")
    rows = df.select(*others, read(f.col(f"`{value}`").cast("binary")).alias("__row"))
    return rows.select(*others, *(f.col(f"__row.`{name}`").alias(name) for name in (*columns.names, ERROR)))


def encoded(df: "DataFrame", encoder: Callable[[pa.Array], pa.Array], names: list[str]) -> "Column":
    """The bytes of each row, made of some columns."""
    from pyspark.sql import functions as f

    value: Column = _udf(encoder, "BINARY")(f.struct(*(f.col(f"`{name}`") for name in names)))
    return value


def _rows(decoder: Decoder) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_in()
        for batch in batches:
            value, *others = batch.columns
            structs = decoder(value)
            schema = pa.schema([*list(batch.schema)[1:], *structs.type])
            yield pa.RecordBatch.from_arrays([*others, *structs.flatten()], schema=schema)

    return rows


def _can_go_along(df: "DataFrame", names: list[str]) -> "list[StructField] | None":
    """The columns that go to Python and back as they are; None where that would change one of them. A watermark is a
    note on a column, and Python does not bring it back; and PySpark takes a dot in a name for a field of a struct.
    """
    schema = df.schema
    fields = [schema[name] for name in names]
    is_safe = all(not field.metadata and "." not in field.name and _is_plain(field.dataType) for field in fields)
    return fields if is_safe else None


def _is_plain(type: Any) -> bool:
    name = type.typeName()
    if name == "array":
        return _is_plain(type.elementType)
    if name == "map":
        return _is_plain(type.keyType) and _is_plain(type.valueType)
    if name == "struct":
        return all(_is_plain(field.dataType) for field in type.fields)
    return name in _PLAIN


def _udf(work: Callable[[pa.Array], pa.Array], type: str) -> Any:
    from pyspark.sql.pandas.functions import arrow_udf

    def column(values: pa.Array) -> pa.Array:
        settle_in()
        return work(values)

    return arrow_udf(column, type)  # type: ignore[call-overload] # its stub wants a kind, which the hints tell
