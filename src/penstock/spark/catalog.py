"""Options of a table, kept in the metadata of a column: Spark keeps nothing else of a CREATE TABLE. Knows no server.

Metadata goes wherever its column goes: into DataFrames, views, other tables and Parquet files. So there is a note of
Spark's own beside the options: it shows whether a table is written to, or columns only come from one.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import AtomicType, StructField, StructType

from penstock.errors import OptionError
from penstock.kit.rows import listed
from penstock.options import Options, alias, places, secrets, shown, spellings
from penstock.spark.writing import BatchWriter, Done, Write

if TYPE_CHECKING:
    from penstock.spark.connector import Connector

TABLE_OPTIONS = "penstock.options"
# Spark notes here how a column was declared. A column that is read keeps the note. Rows of an INSERT get the metadata
# of the table without this note.
DECLARED = "__CHAR_VARCHAR_TYPE_STRING"


def given_to_create(options: Mapping[str, str]) -> dict[str, str] | None:
    """The user's options of a CREATE TABLE, without those that Spark adds; None where this is not a CREATE TABLE."""
    if "provider" not in options:
        return None
    sparks_own = ("provider", "owner", "comment", "location", "external", "is_managed_location")
    return {k: v for k, v in options.items() if k not in sparks_own and not k.startswith("option.")}


def remember(schema: StructType, given: Mapping[str, str], models: Iterable[type[Options]]) -> StructType:
    """`schema` with the options in one of its fields. An error where one is a secret, as a catalog shows options, and
    where one belongs to a single write.
    """
    if {"txnappid", "txnversion"} & {key.lower() for key in given}:
        raise OptionError(
            "options 'txnAppId' and 'txnVersion' belong to one write, and a table would give them to each: only the "
            "first INSERT would be written. Give them with the write: df.writeTo(...).option('txnAppId', ...)."
        )
    for model in models:
        known, hidden = spellings(model), secrets(model)
        for name in (known[key.lower()] for key in given if known.get(key.lower()) in hidden):
            raise OptionError(
                f"option '{shown(model, name)}' is a secret, and CREATE TABLE would write it into the catalog. Give "
                f"'{alias(name)}File' instead, or the option with each query: "
                f"spark.read.option('{shown(model, name)}', ...).table(...)."
            )
    # Spark parses the note, which works for every atomic type. A table has such a column, at least in its key.
    at = next(i for i, field in enumerate(schema.fields) if isinstance(field.dataType, AtomicType))
    field = schema.fields[at]
    kept = {TABLE_OPTIONS: json.dumps(dict(given), sort_keys=True), DECLARED: field.dataType.simpleString()}
    marked = StructField(field.name, field.dataType, field.nullable, kept)
    return StructType([*schema.fields[:at], marked, *schema.fields[at + 1 :]])


def is_insert(schema: StructType) -> bool:
    """Whether rows of this schema are an INSERT into a table of ours."""
    return any(TABLE_OPTIONS in metadata and DECLARED not in metadata for metadata in _metadata(schema))


def recall(schema: StructType, model: type[Options], given: Mapping[str, str]) -> dict[str, Any]:
    """The options of `model` that `remember` kept, with lower-case keys as Spark has them, and `given` added.

    An error where `given` names another server: the table's files of secrets are not meant for it.
    """
    texts = [metadata[TABLE_OPTIONS] for metadata in _metadata(schema) if TABLE_OPTIONS in metadata]
    known = {alias(name).lower() for name in model.model_fields}
    kept = {k.lower(): v for k, v in json.loads(texts[0] if texts else "{}").items() if k.lower() in known}
    given_lower = {k.lower(): v for k, v in given.items()}
    for name in map(alias, places(model)) if kept else ():
        if name.lower() in given_lower and given_lower[name.lower()] != kept.get(name.lower()):
            raise OptionError(
                f"option '{name}' is not that of the table whose columns these are, and the other options of that "
                "table would go with it. Leave it out, or give the columns as text: schema('id STRING, ...')."
            )
    return kept | dict(given)


def _metadata(schema: StructType) -> list[dict[str, Any]]:
    return [field.metadata or {} for field in schema.fields]


class InsertWriter(BatchWriter[Write]):
    """The writer of an INSERT. A table also has columns that only the server fills: these must be null."""

    def __init__(
        self,
        connector: "type[Connector[Any, Write]]",
        options: Write,
        columns: pa.Schema,
        own: Sequence[str],
    ):
        super().__init__(connector, options, without(columns, own))
        self.own = own

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Done:
        """Write a partition."""
        return super().write(map(self._stripped, iterator))

    def _stripped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch without the columns that only the server fills. An error where one is not null."""
        present = [name for name in self.own if name in batch.schema.names]
        filled = [name for name in present if batch.column(name).null_count < len(batch)]
        if filled:
            raise not_ours(self.connector.format, filled, self.columns.names)
        return batch.drop_columns(present)


def without(columns: pa.Schema, own: Sequence[str]) -> pa.Schema:
    """The columns without `own`."""
    return pa.schema([field for field in columns if field.name not in own])


def not_ours(format: str, filled: Sequence[str], takes: Sequence[str]) -> OptionError:
    """The error for an INSERT that fills columns of the server."""
    return OptionError(
        f"{format} cannot write {listed(filled)}, which the server gives. Name the columns of the INSERT without "
        f"{'them' if len(filled) > 1 else 'it'}: INSERT INTO ... ({', '.join(takes)}) SELECT ..."
    )
