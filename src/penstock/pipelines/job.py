"""A pipeline as a streaming query. With one sink, Spark writes its batches; with several, with dead letters, or where
rows must be put into an order first, each batch is written to one after the other, by names that they know again. Knows
Spark; no servers.
"""

import functools
import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.checkpoints.log import Log
from penstock.checkpoints.storage import Folder, folder
from penstock.codecs import ERROR
from penstock.errors import OptionError, PenstockError
from penstock.pipelines import rows as steps
from penstock.pipelines.functions import imported
from penstock.pipelines.pipeline import FILES, Pipeline, SinkEnd
from penstock.pipelines.transforms import apply
from penstock.watch.progress import OBSERVED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LIST, BY_BATCH = "_spark_metadata", "query_id="  # where files of a lone sink are listed; folders of one among several
# What was thrown, or caused it, where a query was stopped in the middle of a batch.
_INTERRUPTION = re.compile(r"^(?:: |Caused by: )(java\.\S*Interrupt\w*Exception)", re.MULTILINE)
SINKS = "penstock.sinks"  # a file of the checkpoint: several sinks, each with the first batch that it was written


def as_begun(pipeline: Pipeline) -> Pipeline:
    """The pipeline as its checkpoint needs it: who began with several sinks goes on that way. An error where the
    checkpoint is damaged.
    """
    names = set(folder(pipeline.location).names())
    if not {"metadata", "offsets"} & names:
        return pipeline
    log = Log(pipeline.location)
    _ = log.query_id  # says what is wrong where Spark would not
    if log.last_planned is None:
        return pipeline
    log.entry(log.last_planned)
    return replace(pipeline, had_several=SINKS in names)


def _begin_by_batch(pipeline: Pipeline) -> None:
    """Note in the checkpoint that sinks are written by batch, before the first one is planned. An error where a batch
    is half done, and a sink would not know its rows again: Spark itself wrote it until now, or it has another name.
    """
    checkpoint = folder(pipeline.location)
    names = set(checkpoint.names())
    log = Log(pipeline.location) if {"metadata", "offsets"} & names else None
    number = log.last_planned if log is not None else None
    is_open = log is not None and number is not None and not log.is_committed(number)
    way_out = f"Run it once as it was, until batch {number} is done, and then change it."
    if SINKS not in names:
        if is_open:
            raise OptionError(
                f"batch {number} of {pipeline.key} is not finished, and Spark itself wrote its one sink (or the file "
                f"{SINKS} of its checkpoint was removed: put it back). Written by batch, as several sinks and sorted "
                f"rows are, its rows would be doubled. {way_out}"
            )
        checkpoint.write(SINKS, json.dumps({"after": -1 if number is None else number}).encode())
        return
    known = _known(checkpoint)
    if not is_open or log is None or number is None:
        return
    since = known.get("since", {}) if known.get("query") == log.query_id else {}
    if not since and number > known.get("after", number) + 1:
        raise OptionError(_damaged(checkpoint, f"it does not name the sinks of batch {number}, which is half done"))
    letters = [pipeline.dead_letters.name] if pipeline.dead_letters is not None else []
    if gone := [name for name in since if name not in {*letters, *(sink.name for sink in pipeline.sinks)}]:
        raise OptionError(
            f"batch {number} of {pipeline.key} is not finished, and the sink '{gone[0]}' may have rows of it. By "
            f"another name they would be doubled, and without the sink they would be forgotten. {way_out}"
        )


def _known(checkpoint: Folder) -> dict[str, Any]:
    """What the checkpoint tells of several sinks."""
    content = checkpoint.read(SINKS)
    try:
        known = json.loads(content) if content is not None else {}
    except ValueError:
        known = None
    if not isinstance(known, dict):
        raise OptionError(_damaged(checkpoint, f"it holds {content[:40]!r}" if content else "it is empty"))
    return known


def _damaged(checkpoint: Folder, why: str) -> str:
    return (
        f"the file {SINKS} of checkpoint '{checkpoint.location}' is damaged: {why}. Without it sinks do not know their "
        "rows again. Put it back from a copy, or set the checkpoint back: penstock checkpoints rewind --new-query."
    )


def start(spark: "SparkSession", pipeline: Pipeline, records: "DataFrame | None" = None) -> "StreamingQuery":
    """Start the query of a pipeline. An error where Spark or a server refuses it. `records`: in place of its source."""
    pipeline = as_begun(pipeline)
    planned = plan(spark, pipeline, records)
    _check_folders(pipeline, planned.is_by_batch)
    writer = planned.rows.writeStream.queryName(pipeline.key).option("checkpointLocation", pipeline.location)
    trigger = pipeline.trigger
    if trigger.available_now:
        writer = writer.trigger(availableNow=True)
    elif trigger.processing_time is not None:
        writer = writer.trigger(processingTime=f"{round(trigger.processing_time * 1000)} milliseconds")
    if planned.is_by_batch:
        _begin_by_batch(pipeline)
        complete = replace(pipeline, transforms=imported(pipeline.transforms, pipeline.file))
        return writer.foreachBatch(batch_writer(complete, planned.is_decoded_only, planned.is_mixed)).start()
    folder(pipeline.location).remove(SINKS)  # of a start with several sinks that Spark refused
    (sink,) = pipeline.sinks
    if sink.partition_by:
        writer = writer.partitionBy(*sink.partition_by)
    return writer.format(sink.kind.format).options(**sink.options).start()


def _check_folders(pipeline: Pipeline, is_by_batch: bool) -> None:
    """An error where files would lie beside others that were written in another way: Spark would not read them."""
    letters = [pipeline.dead_letters] if pipeline.dead_letters is not None else []
    for sink in (*pipeline.sinks, *letters):
        if sink.type not in FILES:
            continue
        try:
            names = folder(sink.options["path"]).names()
        except PenstockError:
            continue  # a storage that only Spark can read
        listed, by_batch = LIST in names, any(name.startswith(BY_BATCH) for name in names)
        if by_batch and not listed and not is_by_batch:
            raise OptionError(
                f"'{sink.options['path']}' has folders {BY_BATCH}..., of a pipeline with several sinks. A lone sink "
                f"lists its files in {LIST}, and Spark then reads only what is listed there. Name a new folder."
            )
        if listed and is_by_batch:
            raise OptionError(
                f"'{sink.options['path']}' has {LIST}, of a pipeline with a lone sink, and Spark reads only what is "
                f"listed there. One of several sinks writes folders {BY_BATCH}... Name a new folder."
            )


class Plan(NamedTuple):
    """The rows of each batch: as the one sink takes them, or as `batch_writer` does."""

    rows: "DataFrame"
    is_by_batch: bool = True  # whether `batch_writer` writes them
    is_decoded_only: bool = False  # transforms are left to it
    is_mixed: bool = False  # rows may come in another order the next time, and a sink knows them by their place


def plan(spark: "SparkSession", pipeline: Pipeline, records: "DataFrame | None" = None) -> Plan:
    """What Spark is to do for each batch. Errors of the file are found here, and not in a batch."""
    from pyspark.sql import functions as f

    decoded = steps.decoded(steps.records(spark, pipeline.source) if records is None else records, pipeline.source)
    if ERROR in decoded.columns:
        errors = f.count_if(f.col(ERROR).isNotNull()).alias("errors")
        decoded = decoded.observe(OBSERVED, f.count(f.lit(1)).alias("records"), errors)
    transformed = apply(steps.good(decoded, pipeline.errors.mode), pipeline.transforms, pipeline.file)
    for sink in pipeline.sinks:
        rows = steps.shaped(transformed, sink, pipeline)
    is_mixed = pipeline.is_remembered and bool(pipeline.transforms) and steps.is_mixed(transformed)
    if pipeline.is_one_write and not is_mixed:
        return Plan(rows, is_by_batch=False)
    has_letters = pipeline.dead_letters is not None and ERROR in decoded.columns
    if (has_letters or pipeline.needs_order) and steps.is_row_wise(transformed, decoded):
        return Plan(decoded, is_decoded_only=True)
    if pipeline.dead_letters is None or not has_letters:
        return Plan(transformed, is_mixed=is_mixed)
    letters = steps.dead_rows(steps.dead(decoded, pipeline), pipeline.dead_letters)
    as_row, as_letter = (
        df.select(f.struct(*(f.col(f"`{name}`") for name in df.columns)).alias(name))
        for df, name in ((transformed, "row"), (letters, "letter"))
    )
    return Plan(as_row.unionByName(as_letter, allowMissingColumns=True), is_mixed=is_mixed)


@dataclass(frozen=True)
class batch_writer:  # noqa: N801 - used as the function that it is
    """Writes a batch to every sink. A class, so that it travels to the server of Spark Connect."""

    pipeline: Pipeline
    is_decoded_only: bool  # transforms are still to come
    is_mixed: bool

    def __call__(self, batch: "DataFrame", number: int) -> None:
        """Write a batch. Sinks that know a batch again by its number are not written twice when it is run again."""
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped] # it ships no types

        try:
            self._write(batch, number)
        except Py4JJavaError as error:
            interruption = _INTERRUPTION.search(str(error))
            if interruption is None:
                raise
            # Spark knows by these words that it was stopped. In an error with all stacks of calls its search for them
            # overflows its own stack.
            words = f"py4j.protocol.Py4JJavaError: An error occurred while calling save: {interruption[1]}"
            raise InterruptedError(words) from None

    def _write(self, batch: "DataFrame", number: int) -> None:
        needs_order, is_known = self.pipeline.needs_order, self.pipeline.source.kind.options is not None
        if self.is_mixed or needs_order:
            batch = steps.ordered(batch, by_content=self.is_mixed or not is_known, is_placed=not needs_order)
        batch.persist()
        try:
            query, parts = self._query, self._parts(batch)
            since = _since(folder(self.pipeline.location), query, [sink.name for sink, _ in parts], number)
            if any(sink.type == "console" for sink, _ in parts):
                batch.count()  # it looks at a few rows only, and Spark's state must see them all
            for sink, part in parts:
                first = since[sink.name]
                name = f"{query}-{sink.name}" + (f"-{first}" if first else "")
                write(part, sink, name, query, number, number - first)
        finally:
            batch.unpersist()

    @functools.cached_property
    def _query(self) -> str:
        """The id of the query, which its checkpoint has: one look at the folder is enough."""
        return Log(self.pipeline.location).query_id

    def _parts(self, batch: "DataFrame") -> list[tuple[SinkEnd, "DataFrame"]]:
        """The sinks, each with its rows. Dead letters come first: a record is never only in the past."""
        pipeline = self.pipeline
        dead_letters, transformed = pipeline.dead_letters, batch
        parts: list[tuple[SinkEnd, DataFrame]] = []
        if self.is_decoded_only:
            if dead_letters is not None and ERROR in batch.columns:
                parts.append((dead_letters, steps.dead_rows(steps.dead(batch, pipeline), dead_letters)))
            transformed = apply(steps.good(batch, pipeline.errors.mode), pipeline.transforms, pipeline.file)
        elif dead_letters is not None and batch.columns == ["row", "letter"]:
            parts.append((dead_letters, batch.where("letter IS NOT NULL").select("letter.*")))
            transformed = batch.where("row IS NOT NULL").select("row.*")
        for sink in pipeline.sinks:
            own = _goes_to(transformed, sink.name, pipeline) if "sink" in pipeline.routing else transformed
            parts.append((sink, steps.shaped(own, sink, pipeline)))
        return parts


def _since(checkpoint: Folder, query: str, sinks: list[str], batch: int) -> dict[str, int]:
    """The first batch of each sink. A sink that is new begins with this batch: it has no note of those before. So does
    one that was left out for a while.
    """
    known = _known(checkpoint)
    before = known.get("since", {}) if known.get("query") == query else {}
    since = {name: before.get(name, batch) for name in sinks}
    if since != before:
        checkpoint.write(SINKS, json.dumps({"query": query, "since": since}).encode())
    return since


def _goes_to(rows: "DataFrame", name: str, pipeline: Pipeline) -> "DataFrame":
    """The rows that go to a sink. An error where one goes to a sink that does not exist."""
    expression = pipeline.routing["sink"]
    is_array = rows.selectExpr(f"({expression}) AS sink").dtypes[0][1].startswith("array")
    targets = f"array_compact({expression if is_array else f'array({expression})'})"
    names = ", ".join(f"'{sink.name}'" for sink in pipeline.sinks)
    unknown = f"get(array_except({targets}, array({names})), 0)"
    text = f"concat('[routing] sends a row to the sink \\'', {unknown}, '\\', and there is none of that name.')"
    return rows.where(
        f"CASE WHEN {unknown} IS NOT NULL THEN raise_error({text}) ELSE array_contains({targets}, '{name}') END"
    )


def write(rows: "DataFrame", sink: SinkEnd, name: str, query: str, batch: int, version: int) -> None:
    """Write the rows of a batch to a sink. `name` and `version` tell the write from all others of this sink; files lie
    in a folder of their `query` and `batch`.
    """
    if sink.type == "console":
        print(f"-------- {sink.name}, batch {batch}")
        rows.show(int(sink.options.get("numRows", 20)), sink.options.get("truncate", "true") == "true")
        return
    options: dict[str, Any] = dict(sink.options)
    writer = rows.write.format(sink.kind.format).mode("append")
    if sink.partition_by:
        writer = writer.partitionBy(*sink.partition_by)
    if sink.type in FILES:
        # A folder for each batch: one that is written again takes the place of what an earlier try left. One of another
        # query, such as a replay of dead letters, must not.
        place = f"{options['path']}/{BY_BATCH}{query.partition('-')[0]}/batch_id={batch}"
        writer, options["path"] = writer.mode("overwrite"), place
    elif sink.kind.txn and options.get("delivery") != "at_least_once":
        options |= {"txnAppId": name, "txnVersion": version}
    elif sink.type == "noop":
        writer = writer.mode("overwrite")
    writer.options(**options).save()
