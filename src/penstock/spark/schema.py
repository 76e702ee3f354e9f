"""Spark's columns as Arrow's. Those that Spark cannot hand to Python have a stand-in, so that one error can name all
columns that are wrong. Knows no server.
"""

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from penstock.errors import OptionError

# The stand-in for a type that Arrow does not have. No sink takes it.
STRANGE = pa.month_day_nano_interval()


def arrow_schema(schema: StructType) -> pa.Schema:
    """The columns. One that Spark cannot hand over has STRANGE in its type."""
    return pa.schema([_handed_over(field) or pa.field(field.name, _like(field.dataType)) for field in schema.fields])


def refuse_strange(schema: StructType) -> None:
    """Refuse all columns that Spark cannot hand over. For columns that a sink takes whatever their type."""
    strange = [field for field in schema.fields if _handed_over(field) is None]
    if not strange:
        return
    names = [field.name for field in strange]
    what = ", ".join(f"'{field.name}' ({field.dataType.simpleString()})" for field in strange)
    without = ", ".join(f"`{name}`" for name in names)
    paste = [f"* EXCEPT ({without})", *(f"string(`{name}`) AS `{name}`" for name in names)]
    raise OptionError(
        f"Spark cannot hand these columns to a sink: {what}. Write them otherwise: .selectExpr("
        + ", ".join(f'"{text}"' for text in paste)
        + f"), or leave them out with drop({', '.join(map(repr, names))})."
    )


def _handed_over(field: StructField) -> pa.Field | None:
    """A column as Spark hands it over; None where it cannot. Arrow may refuse it too, as with `array()`, whose elements
    have no type and are never null.
    """
    try:
        return to_arrow_schema(StructType([field]), timezone="UTC").field(0)
    except (PySparkTypeError, pa.ArrowException, ValueError):
        return None


def _like(kind: DataType) -> pa.DataType:
    """The type of a column that cannot be handed over, with STRANGE in place of what Arrow does not have."""
    if isinstance(kind, ArrayType):
        return pa.list_(pa.field("element", _like(kind.elementType)))
    if isinstance(kind, MapType):
        key = _like(kind.keyType)
        return pa.map_(STRANGE if pa.types.is_null(key) else key, _like(kind.valueType))
    if isinstance(kind, StructType):
        return pa.struct([pa.field(field.name, _like(field.dataType)) for field in kind.fields])
    field = _handed_over(StructField("", kind))
    return STRANGE if field is None else field.type
