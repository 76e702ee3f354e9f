"""Spark's columns as Arrow's, also those that Spark cannot hand to Python: whoever looks at columns should be able to
say what is wrong with all of them at once.
"""

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from penstock.errors import OptionError

# In the place of what Arrow has no type for. Nobody takes it.
STRANGE = pa.month_day_nano_interval()


def arrow_schema(schema: StructType) -> pa.Schema:
    """The columns. Where Spark has no way to hand one over, its type is made of one that nobody takes."""
    return pa.schema([_handed_over(field) or pa.field(field.name, _like(field.dataType)) for field in schema.fields])


def refuse_strange(schema: StructType) -> None:
    """Refuse all columns that Spark cannot hand over: for those that a sink would take, whatever their type."""
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
    """A column as Spark makes it; None where it cannot. It may also fail in Arrow, as with the elements of `array()`,
    which have no type and are never null.
    """
    try:
        return to_arrow_schema(StructType([field]), timezone="UTC").field(0)
    except (PySparkTypeError, pa.ArrowException, ValueError):
        return None


def _like(kind: DataType) -> pa.DataType:
    """Nearly the same type, for a column that cannot be handed over."""
    if isinstance(kind, ArrayType):
        return pa.list_(pa.field("element", _like(kind.elementType)))
    if isinstance(kind, MapType):
        key = _like(kind.keyType)
        return pa.map_(STRANGE if pa.types.is_null(key) else key, _like(kind.valueType))
    if isinstance(kind, StructType):
        return pa.struct([pa.field(field.name, _like(field.dataType)) for field in kind.fields])
    made = _handed_over(StructField("", kind))
    return STRANGE if made is None else made.type
