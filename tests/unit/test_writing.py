"""What a failed write says of the tasks that were done."""

import logging
from types import SimpleNamespace

import pyarrow as pa
import pytest

from penstock.arrow.ipc import pack
from penstock.kit.contract import Origin, Receipt
from penstock.spark.writing import BatchWriter, Done

ROWS = pa.RecordBatch.from_pydict({"value": ["a", "b", "c"]})


@pytest.mark.parametrize(
    ("receipt", "said"),
    [
        (Receipt(Origin("q", 4, 1), 3), ["this write failed, but partition 1 of batch 4 wrote 3 rows"]),
        (Receipt(Origin("q", 4, 1), 0), []),
        (Receipt(Origin("q", 4, 1), 3, packed=pack([ROWS])), []),
    ],
    ids=["rows that the task wrote", "no rows", "rows that the driver was to write"],
)
def test_a_failed_write_names_the_rows_that_are_there(
    receipt: Receipt, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    writer = BatchWriter(SimpleNamespace, {}, ROWS.schema, "q")  # type: ignore[arg-type] - no connector is asked
    with caplog.at_level(logging.WARNING, "penstock"):
        writer.abort([Done(receipt), None])
    assert caplog.messages == said
