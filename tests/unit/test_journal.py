"""The log of a journal: files that several processes write, and that somebody may have edited."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.connectors.journal import Journal
from penstock.connectors.journal.log import Log, lines
from penstock.errors import DataLossError, OptionError, ProtocolError
from penstock.kit.contract import Transaction
from penstock.planning.positions import Range
from penstock.testing import JournalLog


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = Log(tmp_path / "a")
    log.make()
    return log


def test_of_several_who_make_a_log_at_once_one_makes_it(tmp_path: Path) -> None:
    for number in range(20):
        log = Log(tmp_path / str(number))

        def made(_: int, log: Log = log) -> str:
            log.make()
            return log.epoch

        with ThreadPoolExecutor(8) as pool:
            epochs = set(pool.map(made, range(8)))
        assert epochs == {log.epoch}
        assert sorted(file.name for file in log.folder.iterdir()) == ["epoch", "first", "rows"]


@pytest.mark.parametrize("value", [b"", b"a\tb\nc\r\n", b"100%", bytes(range(256)), "größe".encode()])
def test_a_value_is_read_as_it_was_written(log: Log, value: bytes) -> None:
    with log.locked() as file:
        file.write(lines([("n", value)]))
    (row,) = log.rows()
    assert (row.name, row.value) == ("n", value)


def test_a_row_that_was_cut_off_is_none_and_goes_with_the_next_writer(log: Log) -> None:
    with log.locked() as file:
        file.write(lines([("1", b"one"), ("2", b"two")])[:-3])
    assert [row.value for row in log.rows()] == [b"one"]
    with log.locked() as file:
        file.write(lines([("2", b"two")]))
    assert [row.value for row in log.rows()] == [b"one", b"two"]


def test_what_somebody_edited_is_said(log: Log) -> None:
    (log.folder / "rows").write_text("garbage\n")
    with pytest.raises(ProtocolError, match="has a line that is not a row"):
        log.rows()
    (log.folder / "rows").unlink()
    with pytest.raises(ProtocolError, match="it has no file 'rows'"):
        log.count()
    (log.folder / "first").write_text("")
    with pytest.raises(ProtocolError, match="its file 'first' has no number"):
        _ = log.first


def test_a_file_in_the_place_of_a_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "log"):
        with pytest.raises(OptionError, match="there is a file in its place"):
            Log(folder).make()


@pytest.mark.parametrize("shard", ["", "../x", "/tmp/x", "a/b", ".", "..", ".hidden"])
def test_a_log_is_inside_of_its_folder(shard: str) -> None:
    with pytest.raises(OptionError, match="must be the name of a folder inside of 'directory'"):
        Journal.parse_sink({"directory": "/tmp/journal", "shard": shard})


def test_rows_that_go_between_plan_and_read_are_loss(tmp_path: Path) -> None:
    log = JournalLog(tmp_path)
    log.make("a")
    log.append("a", [str(i) for i in range(10)])
    options = Journal.parse(log.options())
    planned = Range("a", 0, 10, Log(tmp_path / "a").epoch)
    log.trim("a", 4)
    with pytest.raises(DataLossError, match="4 messages were deleted unread"):
        list(Journal.open_source(options).read(planned))
    lenient = Journal.open_source(Journal.parse({**log.options(), "failOnDataLoss": "false"}))
    assert [len(batch) for batch in lenient.read(planned)] == [6]
    assert Journal.open_source(options).find("a", 0) == 4
    log.delete("a")
    log.make("a")
    log.append("a", ["new"] * 10)
    with pytest.raises(DataLossError, match="deleted and made again"):
        list(Journal.open_source(options).read(planned))
    assert list(lenient.read(planned)) == []


def write(folder: Path, version: int, *partitions: list[str]) -> None:
    """One `df.write` with a name, and the rows of each of its partitions."""
    columns = pa.schema([("value", pa.string())])
    sink = Journal.open_sink(Journal.parse_sink({"directory": str(folder)}), columns)
    batches = [pa.record_batch([rows], columns) for rows in partitions]
    sink.commit([sink.write(iter([b]), Transaction("orders", version, at)) for at, b in enumerate(batches)], version)


def test_a_write_of_the_same_version_with_other_rows_is_refused(tmp_path: Path) -> None:
    rules = "Here the query is txnAppId 'orders', and the batch is txnVersion 3"
    write(tmp_path, 3, ["a", "b"], ["c"])
    write(tmp_path, 3, ["a", "b"], ["c"])
    with pytest.raises(ProtocolError, match=f"orders/3/0/1 was b'b' then.*{rules}"):
        write(tmp_path, 3, ["a", "x"], ["c"])
    with pytest.raises(ProtocolError, match=f"orders/3/1/0 was there then.*{rules}"):
        write(tmp_path, 3, ["a", "b"])
    with pytest.raises(ProtocolError, match=f"orders/3/0/1 was there then.*{rules}"):
        write(tmp_path, 3, ["a"], ["c"])
    write(tmp_path, 4, ["d"])
    write(tmp_path, 5, [])
    assert [row.value for row in Log(tmp_path / "out").rows()] == [b"a", b"b", b"c", b"d"]
