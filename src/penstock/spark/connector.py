"""The adapter between Spark's Python data sources and our contract. Only this package uses pyspark.sql.datasource.

Spark creates readers and writers often and in several processes, so constructors only keep options. A Source or Sink is
opened when it is first needed, and never pickled. Only ranges and receipts travel between processes.
"""

import os
import re
import sys
from collections.abc import Mapping
from typing import ClassVar, TypeVar, cast

import pyarrow as pa

from penstock.spark import needed  # noqa: F401 - before pyspark

# isort: split
from pyspark.sql import datasource as spark
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.errors import OptionError
from penstock.kit.format import SPARKS_OWN, Format
from penstock.kit.retry import at_once
from penstock.options import SECRET, Options, ReadOptions, WriteOptions, alias, secrets, shown, spellings
from penstock.spark.border import Border
from penstock.spark.catalog import InsertWriter, given_to_create, is_insert, not_ours, recall, remember, without
from penstock.spark.progress import FiguresAccumulator
from penstock.spark.reading import BatchReader, PushingReader, StreamReader
from penstock.spark.schema import arrow_schema, refuse_strange
from penstock.spark.writing import BatchWriter, StreamWriter

# Spark 4.2 and 4.3 hide options whose name or value has one of these words. A session may add words, but a data source
# cannot know them.
HIDDEN = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)


Read = TypeVar("Read", bound=ReadOptions)
Write = TypeVar("Write", bound=Options)
Model = TypeVar("Model", bound=Options)


class Connector(Border, Format[Read, Write], spark.DataSource):
    """A format as Spark's data source. A subclass has its name, its options and its guarantees, and opens sources and
    sinks.
    """

    accumulator: ClassVar[FiguresAccumulator | None] = None  # where tasks report what they counted

    def schema(self) -> StructType:
        """The columns. Spark calls this in `.load()`, so errors should be found here, not in a task."""
        table_options = given_to_create(self.options)
        is_create = table_options is not None
        raw = dict(self.options) if table_options is None else table_options
        models = [model for model in (self.options_type, self.sink_options_type) if model is not None]
        # A table may be read and written, so CREATE TABLE may have options of the sink as well.
        others = self.sink_options_type.model_fields if is_create and self.sink_options_type is not None else ()
        for model in models:
            _refuse_shown(model, raw)
        options = cast(Read, self._parse(self.options_type, raw, ignore=tuple(map(alias, others))))
        source = self.open_source(options)
        try:
            at_once(source.check)
        finally:
            source.close()
        schema: StructType = from_arrow_schema(self.columns(options))
        return remember(schema, raw, models) if is_create else schema

    def reader(self, schema: StructType) -> BatchReader[Read]:
        """A reader for `spark.read`. It takes filters only where the user asks for it and the session pushes them."""
        # Spark pushes filters in a worker with this module, which runs only where the session allows it.
        pushes = "pyspark.sql.worker.data_source_pushdown_filters" in sys.modules
        options = self._reading(schema)
        why = self.only_streams(options)
        if why is not None:
            raise OptionError(f"there is nothing that could be read at once: {why}, or use readStream.")
        reader_type = PushingReader if pushes and options.push_filters else BatchReader
        return reader_type(type(self), options, schema)

    def streamReader(self, schema: StructType) -> StreamReader[Read]:  # noqa: N802 - Spark's name
        """A reader for `spark.readStream`."""
        options = self._reading(schema)
        why = self.only_batches(options)
        if why is not None:
            raise OptionError(f"this cannot be streamed: {why}, or use spark.read.")
        for name in ("ending_offsets", "ending_timestamp", "max_records"):
            if getattr(options, name) is not None:
                raise OptionError(
                    f"option '{alias(name)}' is for batch reads. In a streaming query use maxRecordsPerTrigger, and "
                    "trigger(availableNow=True) to stop at what is there."
                )
        return StreamReader(type(self), options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter[Write]:
        """A writer for `df.write`."""
        writer = self._batch_writer(schema, overwrite)
        writer.check()
        return writer

    def _batch_writer(self, schema: StructType, overwrite: bool) -> BatchWriter[Write]:
        if not is_insert(schema):
            return BatchWriter(type(self), *self._writing(schema, overwrite, "write"))
        self._only_appends(overwrite)
        options = cast(Write, self._effective(schema, self.sink_options_type, "write", of_table=True))
        columns, own = arrow_schema(schema), self.servers_own(options)
        filled = [field.name for field in columns if field.name in own and not field.nullable]
        if filled:
            raise not_ours(self.format, filled, without(columns, own).names)
        self.open_sink(options, without(columns, own))
        return InsertWriter(type(self), options, columns, own)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter[Write]:  # noqa: N802 - Spark's name
        """A writer for `df.writeStream`."""
        options, columns = self._writing(schema, overwrite, "writeStream")
        if isinstance(options, WriteOptions) and options.txn_app_id is not None:
            raise OptionError(
                "options 'txnAppId' and 'txnVersion' are for df.write, such as one inside of foreachBatch. A streaming "
                "query is known by its checkpoint, and its batches have numbers: leave both out of writeStream."
            )
        return StreamWriter(type(self), options, columns)

    def _writing(self, schema: StructType, overwrite: bool, way: str) -> tuple[Write, pa.Schema]:
        self._only_appends(overwrite)
        # These columns may come from a table of ours, but the rows go elsewhere: its options do not apply.
        options = cast(Write, self._effective(schema, self.sink_options_type, way, of_table=False))
        columns = arrow_schema(schema)
        self.open_sink(options, columns)  # refuses columns before any task runs
        refuse_strange(schema)
        return options, columns

    def _only_appends(self, overwrite: bool) -> None:
        if overwrite:
            raise OptionError(f"{self.format} only appends: use mode('append'), or outputMode('append') in a stream.")

    def _reading(self, schema: StructType) -> Read:
        options = cast(Read, self._effective(schema, self.options_type, "read", of_table=True))
        return self.shaped(options, arrow_schema(schema))

    def _effective(self, schema: StructType, model: type[Model] | None, way: str, *, of_table: bool) -> Model:
        """The options of the user. With `of_table`, also those of the table that the schema belongs to."""
        raw = dict(self.options)
        if model is not None and of_table:
            raw = recall(schema, model, raw)
        if not {name.lower() for name in raw} - {name.lower() for name in SPARKS_OWN}:
            raise OptionError(_no_options(self.format, schema, way))
        if model is not None:
            _refuse_shown(model, raw)
        return self._parse(model, raw)


def _refuse_shown(model: type[Options], raw: Mapping[str, str]) -> None:
    """Refuse a secret that Spark would not hide, before there is a plan that shows it."""
    known, hidden = spellings(model), secrets(model)
    # Only sessions of Spark Connect have such an id: it separates the files that their users upload.
    is_connect = os.environ.get("SPARK_JOB_ARTIFACT_UUID", "default") != "default"
    for key, value in raw.items():
        name = known.get(key.lower())
        if name not in hidden:
            continue
        if is_connect:
            raise OptionError(
                f"Spark Connect writes what a query is made of into its event log and web pages, and hides no option "
                f"there: not '{shown(model, name)}' either. Name a file on its server in '{alias(name)}File', and give "
                "out another secret, as this one has been written down."
            )
        if not HIDDEN.search(key) and not value.startswith(SECRET):
            raise OptionError(
                f"Spark would show the option '{alias(name)}' in plans, errors and logs. Give it as "
                f"'{shown(model, name)}', or begin its value with '{SECRET}': both are hidden. Or name a file in "
                f"'{alias(name)}File'."
            )


def _no_options(format: str, schema: StructType, way: str) -> str:
    """The error text where there are no options. The user may have given them to a table, and Spark dropped them.

    `way`: read, write or writeStream.
    """
    create = f"CREATE TABLE t USING {format} OPTIONS (...)"
    dropped = (
        f"the table was made by a CREATE TABLE that lists columns or has AS SELECT: Spark drops all options of such a "
        f"table. Drop it and write {create} alone; its columns come by themselves"
    )
    if way == "read":
        return (
            f"{format} was given no options, so it does not know what to read. Add them: "
            f"spark.read.format('{format}').option(...). If this is a table, {dropped}."
        )
    if way == "writeStream":
        return (
            f"{format} was given no options, so it does not know where to write. Add them: "
            f"writeStream.format('{format}').option(...).start(). If this is toTable('t'), add them as well: "
            "writeStream.option(...).toTable('t'), as Spark does not tell a streaming query the options of its table."
        )
    names = [name for name in schema.names if name in ("value", "subject")] or schema.names[:2]
    listed = ", ".join(names)
    return (
        f"{format} was given no options, so it does not know where to write. In df.write.format('{format}'), add them: "
        f".option(...). In an INSERT or a writeTo there are two causes. First: the rows have all columns of the table, "
        "with the same names and types, as in INSERT INTO t SELECT * FROM t. Spark then does not say which table it "
        f"writes to. Name only the columns that you write: INSERT INTO t ({listed}) SELECT {listed} FROM ... Or, to "
        f"write all of them, give one another name, as an INSERT goes by their order: SELECT {names[0]} AS "
        f"new_{names[0]}, ... Second: {dropped}."
    )
