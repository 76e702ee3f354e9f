"""What writers say of a write that failed, and where they look for rows of an earlier one."""

import logging
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from penstock.arrow.ipc import pack
from penstock.connectors.journal import Journal
from penstock.connectors.journal.options import JournalSinkOptions
from penstock.connectors.journal.sink import JournalSink
from penstock.kit.contract import Origin, Receipt, Sink
from penstock.planning.positions import Offsets, Position
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
    writer = BatchWriter(SimpleNamespace, {}, ROWS.schema)  # type: ignore[arg-type] - no connector is asked
    with caplog.at_level(logging.WARNING, "penstock"):
        writer.abort([Done(receipt), None])
    assert caplog.messages == said


@pytest.mark.parametrize("named", [True, False])
def test_a_write_with_a_name_looks_at_all_of_a_log_and_not_only_behind_its_end(named: bool, tmp_path: Path) -> None:
    """What an earlier write of the same version wrote lies before the end."""

    class WithEnds(JournalSink):
        def ends(self) -> Offsets:
            return {"out": Position(7, "e")}

        def begin(self, ends: Offsets) -> None:
            assert ends == {"out": Position(7, "e")}

    class Ended(Journal):
        @classmethod
        def open_sink(cls, options: JournalSinkOptions, columns: pa.Schema) -> Sink:
            return WithEnds(options, columns)

    given = {"directory": str(tmp_path)} | ({"txnAppId": "a", "txnVersion": "3"} if named else {})
    writer = BatchWriter(Ended, Journal.parse_sink(given), ROWS.schema)
    writer.check()
    assert (writer.ends is None) is named
    assert (writer.version == 3) is named
    assert (writer.name == "a") is named
