"""Avro's schemas: parsed, and as types of Arrow. Knows fastavro's parser; reads no bytes.

Types are those of Spark's own Avro: a union of several types is a struct with `member0`, `member1` and so on.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.errors import OptionError

Schema = Any  # as fastavro has it: a name, a list or a dictionary
PRIMITIVES = {
    "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(),
}  # fmt: skip
# By (type, logical type). A logical type that is not here is read as its type.
LOGICAL = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("us"),
}


class Avro:
    """A schema with the types that it names."""

    def __init__(self, schema: Schema, names: Mapping[str, Schema]):
        self.schema, self.names = schema, names

    @classmethod
    def parse(cls, text: str, references: Sequence[tuple[str, str]] = ()) -> "Avro":
        """Parse a schema of JSON. `references`: names and texts of others that it needs. An OptionError where it is
        none.
        """
        names: dict[str, Schema] = {}
        for _, other in references:
            cls._parse_into(other, names)
        return cls(cls._parse_into(text, names), names)

    @staticmethod
    def _parse_into(text: str, names: dict[str, Schema]) -> Schema:
        from fastavro.schema import SchemaParseException, UnknownType, parse_schema

        try:
            given = json.loads(text)
        except ValueError:
            given = text.strip()  # a bare name, such as long
        try:
            return parse_schema(given, named_schemas=names)
        except (SchemaParseException, UnknownType, KeyError, TypeError, ValueError) as error:
            raise OptionError(f"this is no schema of Avro: {text[:200]}: {error}") from None

    def at(self, schema: Schema) -> Schema:
        """A schema, or what a name stands for."""
        return self.names.get(schema, schema) if isinstance(schema, str) else schema

    def fields(self) -> list[dict[str, Any]]:
        """The columns: the fields of a record, or one `value` of any other type."""
        top = self.at(self.schema)
        if kind(top) == "record":
            return list(top["fields"])
        return [{"name": "value", "type": top}]

    def arrow(self) -> pa.Schema:
        """The columns as Arrow has them. An OptionError where Spark cannot."""
        if not self.fields():
            raise OptionError("the record of Avro has no fields, and Spark has no such columns.")
        return pa.schema([(field["name"], self.arrow_type(field["type"])) for field in self.fields()])

    def arrow_type(self, schema: Schema, inside: tuple[str, ...] = ()) -> pa.DataType:
        """The type of a schema. `inside`: the records around it."""
        schema = self.at(schema)
        what = kind(schema)
        if what == "union":
            others = [each for each in schema if kind(self.at(each)) != "null"]
            return union_type([self.arrow_type(each, inside) for each in others])
        if what == "record":
            name = schema["name"]
            if name in inside:
                raise OptionError(f"the record '{name}' of Avro has itself inside, and Spark has no such columns.")
            within = (*inside, name)
            if not schema["fields"]:
                raise OptionError(f"the record '{name}' of Avro has no fields, and Spark has no such columns.")
            return pa.struct([(each["name"], self.arrow_type(each["type"], within)) for each in schema["fields"]])
        if what == "array":
            return pa.list_(self.arrow_type(schema["items"], inside))
        if what == "map":
            return pa.map_(pa.string(), self.arrow_type(schema["values"], inside))
        if what == "enum":
            return pa.string()
        if (places := decimal_of(schema)) is not None:
            return pa.decimal128(*places)
        if what == "fixed":
            return pa.binary()
        return LOGICAL.get((what, logical(schema) or ""), PRIMITIVES[what])


def union_type(types: list[pa.DataType]) -> pa.DataType:
    """One type for several, as Spark has it: the wider number, or a struct with a member for each."""
    if len(types) <= 1:
        return types[0] if types else pa.null()
    if set(types) == {pa.int32(), pa.int64()}:
        return pa.int64()
    if set(types) == {pa.float32(), pa.float64()}:
        return pa.float64()
    return pa.struct([(f"member{number}", each) for number, each in enumerate(types)])


def kind(schema: Schema) -> str:
    """The type of a schema, without what it consists of."""
    if isinstance(schema, list):
        return "union"
    if isinstance(schema, dict):
        inner = schema["type"]
        return kind(inner) if isinstance(inner, dict | list) else "record" if inner == "error" else str(inner)
    return str(schema)


def logical(schema: Schema) -> str | None:
    """The logical type of a schema."""
    return schema.get("logicalType") if isinstance(schema, dict) else None


def decimal_of(schema: Schema) -> tuple[int, int] | None:
    """Digits in all and behind the point, where it is a decimal that Spark has."""
    if logical(schema) != "decimal" or kind(schema) not in ("bytes", "fixed"):
        return None
    precision, scale = schema.get("precision", 0), schema.get("scale", 0)
    return (precision, scale) if 0 < precision <= 38 and 0 <= scale <= precision else None


def of_columns(columns: pa.Schema, name: str) -> str:
    """A schema for columns, each of which may be null. An OptionError with all columns that Avro has nothing for."""
    problems: list[str] = []
    fields = [
        {
            "name": each.name,
            "type": _optional(_of_type(each.type, f"{name}_{each.name}", each.name, problems)),
            "default": None,
        }
        for each in columns
    ]
    if problems:
        raise OptionError(f"Avro has no type for {', '.join(problems)}. Leave them out, or cast them.")
    return json.dumps({"type": "record", "name": name, "fields": fields})


def _optional(schema: Schema) -> Schema:
    return ["null", schema]


def _of_type(type: pa.DataType, name: str, path: str, problems: list[str]) -> Schema:
    """The schema of a type. Records inside are called by their place, as a name can have one meaning only."""
    if pa.types.is_struct(type):
        fields = [
            {
                "name": each.name,
                "type": _optional(_of_type(each.type, f"{name}_{each.name}", f"{path}.{each.name}", problems)),
                "default": None,
            }
            for each in type
        ]
        return {"type": "record", "name": name, "fields": fields}
    if pa.types.is_list(type):
        return {"type": "array", "items": _optional(_of_type(type.value_type, name, f"{path}[]", problems))}
    if pa.types.is_map(type) and pa.types.is_string(type.key_type):
        return {"type": "map", "values": _optional(_of_type(type.item_type, name, f"{path}[]", problems))}
    if pa.types.is_decimal(type):
        return {"type": "bytes", "logicalType": "decimal", "precision": type.precision, "scale": type.scale}
    if pa.types.is_timestamp(type):
        return {"type": "long", "logicalType": "timestamp-micros" if type.tz else "local-timestamp-micros"}
    if pa.types.is_date(type):
        return {"type": "int", "logicalType": "date"}
    for known, schema in _OF_TYPE.items():
        if type == known:
            return schema
    problems.append(f"'{path}' ({type})")
    return "null"


_OF_TYPE = {
    pa.bool_(): "boolean", pa.int8(): "int", pa.int16(): "int", pa.int32(): "int", pa.int64(): "long",
    pa.float32(): "float", pa.float64(): "double", pa.string(): "string", pa.binary(): "bytes",
}  # fmt: skip
