"""Lost data stops a query, or is said once and counted."""

import logging

import pytest

from penstock.errors import DataLossError, OptionError
from penstock.kit.figures import so_far
from penstock.kit.loss import LossReport
from penstock.options import ReadOptions
from penstock.planning.positions import Bound, Loss

TRIMMED = Loss("S", 17, Bound(501, 600), "trimmed")


def test_loss_stops_the_query_with_numbers_and_a_remedy() -> None:
    with pytest.raises(DataLossError, match=r"'S' starts at 501, but the query is at 17: 484 .*\. Raise the"):
        LossReport(ReadOptions()).lost([TRIMMED])


def test_loss_that_is_allowed_is_said_once_and_counted_once(caplog: pytest.LogCaptureFixture) -> None:
    report, before = LossReport(ReadOptions(fail_on_data_loss=False)), so_far()
    with caplog.at_level(logging.WARNING, "penstock"):
        for _ in range(3):
            report.lost([TRIMMED])
        report.lost([TRIMMED._replace(at=20)])
        report.lost([Loss("T", 5, None, "gone")])
    assert len(caplog.records) == 3
    assert (so_far() - before).skipped == 484 + 481


def test_a_missing_stream_is_an_error_where_nothing_else_is_left(caplog: pytest.LogCaptureFixture) -> None:
    report = LossReport(ReadOptions(fail_on_data_loss=False))
    with caplog.at_level(logging.WARNING, "penstock"):
        for _ in range(2):
            report.missing("S", lambda: OptionError("there is no 'S'."), nothing_left=False)
    assert [record.getMessage() for record in caplog.records] == [
        "failOnDataLoss=false, going on without 'S': there is no 'S'."
    ]
    with pytest.raises(OptionError, match="there is no 'S'"):
        report.missing("S", lambda: OptionError("there is no 'S'."), nothing_left=True)
