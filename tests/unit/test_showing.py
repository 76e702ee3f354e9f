"""What `penstock run` shows while it goes, with pipelines that are made up. No Spark."""

import io
import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from penstock.cli import showing
from penstock.cli.showing import Display, Log, summary, table

ORDERS = {
    "key": "orders", "state": "running", "rate": 1204.4, "lag": 17, "lag_seconds": 0.34, "batch": 42,
    "messages_read": 72_240, "errors_count": 0, "restarts": 0, "error": "", "restarts_in": None,
}  # fmt: skip
BROKEN = ORDERS | {
    "key": "billing", "state": "waiting to restart", "rate": 0.0, "lag": None, "lag_seconds": None, "batch": None,
    "messages_read": 0, "errors_count": 3, "restarts": 2, "error": "nobody answers at [nats://x:1]", "restarts_in": 4.2,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _log_handlers() -> Iterator[None]:
    """Each display adds its own."""
    before = list(logging.getLogger().handlers)
    yield
    logging.getLogger().handlers[:] = before


def printed(shown: Any) -> str:
    console = Console(file=io.StringIO(), width=140)
    console.print(shown)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_table_has_a_row_for_each_pipeline_and_its_error_below() -> None:
    text = printed(table([BROKEN, ORDERS]))
    row = next(line for line in text.splitlines() if "orders" in line)
    for figure in ("running", "1,204", "72,240", "17", "0.3 s", "42"):
        assert figure in row
    assert "restarts in 4 s" in text
    assert "billing: nobody answers at [nats://x:1]" in text


def test_a_narrow_terminal_shows_fewer_figures_and_whole_words() -> None:
    assert [column.header for column in table([ORDERS], 80).columns] == [
        "pipeline", "state", "records/s", "lag", "behind"
    ]  # fmt: skip
    console = Console(file=io.StringIO(), width=40)
    console.print(table([BROKEN], 40))
    assert "│ billing  │ restarts in 4 s │" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_summary_is_one_line_for_one_pipeline_and_for_many() -> None:
    assert summary([ORDERS]) == "orders: running, 72,240 records, 1,204 a second, lag 17 (0.3 s)"
    assert summary([ORDERS, BROKEN]) == (
        "2 pipelines: 1 running, 1 waiting to restart, 72,240 records, 1,204 a second, lag 17 (0.3 s), 3 errors"
    )
    assert summary([BROKEN]) == "billing: restarts in 4 s, 0 records, 0 a second, 3 errors"


def test_without_a_terminal_there_are_lines_and_one_a_minute_while_all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(showing, "MINUTE", 0.02)
    out, looked = io.StringIO(), threading.Event()
    display = Display(Log.AUTO, Console(file=out, width=140))

    def look() -> list[dict[str, Any]]:
        looked.set()
        return [ORDERS]

    with display.showing(look):
        display.say("orders: running, exactly once")
        assert looked.wait(5)
    lines = [line[9:] for line in out.getvalue().splitlines()]
    assert lines[0] == "orders: running, exactly once"
    assert set(lines[1:]) == {summary([ORDERS])}


def test_lines_of_json_name_the_pipeline_and_carry_its_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(showing, "MINUTE", 0.02)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    looked = threading.Event()
    display = Display(Log.JSON, Console(file=io.StringIO()), ["orders"])

    def look() -> list[dict[str, Any]]:
        looked.set()
        return [ORDERS]

    with display.showing(look):
        display.say("orders: down: refused\nserving http://127.0.0.1:1")
        logging.getLogger("penstock").warning("%d messages were deleted unread", 3)
        assert looked.wait(5)
    said, logged = capsys.readouterr()
    first, second, *rest = map(json.loads, said.splitlines())
    assert (first["pipeline"], first["message"]) == ("orders", "down: refused")
    assert ("pipeline" in second, second["message"]) == (False, "serving http://127.0.0.1:1")
    assert rest[0]["pipelines"][0]["lag"] == 17
    assert json.loads(logged.splitlines()[0])["message"] == "3 messages were deleted unread"
    assert first["time"].endswith("+00:00")


def test_in_a_terminal_the_table_stays_below_what_is_said() -> None:
    out = io.StringIO()
    console = Console(file=out, width=140, force_terminal=True)
    display = Display(Log.AUTO, console)
    with display.showing(lambda: [ORDERS]):
        display.say("orders: running, exactly once")
    text = out.getvalue()
    assert "72,240" in text
    assert text.rindex("72,240") > text.index("orders: running, exactly once")
