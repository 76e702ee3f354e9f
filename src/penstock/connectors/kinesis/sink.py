"""Rows to Kinesis, by PutRecords: as many as a request takes, and those again that were refused. Knows no Spark.

Kinesis keeps nothing by which a row would be known again, so rows of a task that is tried again are stored twice.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from penstock.arrow.buffers import lengths
from penstock.clients.kinesis.calls import Calls, GoneError, RefusedError, ThrottledError
from penstock.connectors.kinesis.options import KinesisSinkOptions
from penstock.errors import ConnectError, Disconnected, OptionError, PenstockError
from penstock.kit import templates
from penstock.kit.contract import Origin, Receipt, Spans
from penstock.kit.rows import BYTES, TEXT, accept

TAKES = {"value": BYTES, "partitionKey": TEXT, "explicitHashKey": TEXT}
# The most that a request may hold.
MOST_RECORDS, MOST_BYTES = 500, 5 << 20
# The most that a record may have, with its partition key, unless a stream is set to take more.
MOST_OF_ONE = 1 << 20
LONGEST_KEY = 256
HASHES = 2**128


class KinesisSink:
    """A sink for one stream."""

    def __init__(self, options: KinesisSinkOptions, columns: pa.Schema):
        if options.partition_key is None and "partitionKey" not in columns.names:
            accept("kinesis", columns, TAKES)
        else:
            templates.accept("kinesis", columns, options.partition_key, TAKES, "partitionKey")
        self.options, self._calls = options, Calls(options)

    def most_bytes(self) -> int:
        """What Kinesis takes."""
        return MOST_OF_ONE

    def check(self) -> None:
        """Refuse a stream that does not exist."""
        self._calls.summary()

    def write(self, batches: Iterator[pa.RecordBatch], origin: Origin) -> Receipt:
        """Store the rows. Returns when Kinesis has confirmed each of them."""
        rows = size = 0
        spans = Spans()
        try:
            for batch in batches:
                for records in self._requests(batch, origin, rows):
                    self._put(records, origin, spans)
                rows += len(batch)
                size += int(lengths(batch.column("value").cast(pa.binary())).sum()) if len(batch) else 0
        except PenstockError as error:
            spans.explain(error, known_again=False)
            raise
        return Receipt(origin, rows, size, spans)

    def commit(self, receipts: Sequence[Receipt], batch: int | None) -> None:
        """Does nothing: the rows are stored."""

    def close(self) -> None:
        """Does nothing: the process keeps its client."""

    def _requests(self, batch: pa.RecordBatch, origin: Origin, first: int) -> Iterator[list[dict[str, Any]]]:
        """The rows as Kinesis takes them, in requests that are not too large."""
        keys = self._keys(batch, origin, first)
        hashes = self._hashes(batch, origin, first)
        records: list[dict[str, Any]] = []
        size = 0
        for number, value in enumerate(batch.column("value").cast(pa.binary()).to_pylist()):
            record = {"Data": value or b"", "PartitionKey": keys[number]}
            if hashes[number] is not None:
                record["ExplicitHashKey"] = hashes[number]
            length = len(record["Data"]) + len(keys[number].encode())
            if records and (len(records) == MOST_RECORDS or size + length > MOST_BYTES):
                yield records
                records, size = [], 0
            records.append(record)
            size += length
        if records:
            yield records

    def _keys(self, batch: pa.RecordBatch, origin: Origin, first: int) -> list[str]:
        """The partition key of each row: its own, that of the template, or one that no other row has."""
        given: list[str | None] = [None] * len(batch)
        if "partitionKey" in batch.schema.names or self.options.partition_key is not None:
            given = templates.names(self.options.partition_key, batch, "partitionKey").to_pylist()
        keys = []
        for number, key in enumerate(given):
            key = key if key is not None else f"{origin.id}{first + number}"
            if not 1 <= len(key) <= LONGEST_KEY:
                raise origin.cannot_write(
                    first + number, f"has a partition key of {len(key)} characters, and Kinesis takes 1 to 256"
                )
            keys.append(key)
        return keys

    def _hashes(self, batch: pa.RecordBatch, origin: Origin, first: int) -> list[str | None]:
        if "explicitHashKey" not in batch.schema.names:
            return [None] * len(batch)
        hashes: list[str | None] = batch.column("explicitHashKey").to_pylist()
        for number, text in enumerate(hashes):
            if text is not None and not (text.isdecimal() and int(text) < HASHES):
                raise origin.cannot_write(
                    first + number, f"has the explicitHashKey '{text[:50]}', which is no whole number below 2^128"
                )
        return hashes

    def _put(self, records: list[dict[str, Any]], origin: Origin, spans: Spans) -> None:
        """Store records. Those that are refused are sent again, until all are there or `reconnectTimeout` is over."""
        retry = self.options.retry(f"writing {origin}")
        while records:
            try:
                answers = self._calls.put(records)
            except Disconnected as error:
                retry.after(error)
                continue
            except RefusedError as error:
                raise OptionError(f"Kinesis does not take a row of {origin}: {error}") from None
            except GoneError as error:
                raise ConnectError(f"stream '{self.options.stream}' is gone: {error}.") from None
            refused = [record for record, answer in zip(records, answers, strict=True) if answer.get("ErrorCode")]
            for answer in answers:
                if not answer.get("ErrorCode"):
                    number = int(answer["SequenceNumber"])
                    spans.widen(answer["ShardId"], number, number)
            if refused:
                why = next(answer for answer in answers if answer.get("ErrorCode"))
                if len(refused) < len(records):
                    retry.progress()
                text = f"{why['ErrorCode']}: {why.get('ErrorMessage')}"
                retry.after(ThrottledError(f"Kinesis refuses {len(refused)} of {len(records)} rows ({text})"))
            records = refused
