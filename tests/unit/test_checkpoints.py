import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from checkpoint_files import BEGAN, GOLDEN, batch, checkpoint, content, ours, put, read, state
from penstock.checkpoints import storage
from penstock.checkpoints.entries import Entry, Move, Offset
from penstock.checkpoints.log import Log
from penstock.errors import ConnectError, OptionError, PenstockError

COMMITTED = 'v1\n{"nextBatchWatermarkMs":0}'


@pytest.mark.parametrize("kind", sorted(folder.name for folder in (GOLDEN / "v0.2").iterdir()))
def test_what_real_queries_wrote_can_be_read(kind: str) -> None:
    folder = GOLDEN / "v0.2" / kind
    log = Log(str(folder))
    assert log.query_id == json.loads((folder / "metadata").read_text())["id"]
    first, second = log.batches()
    assert (log.known_from, log.last_planned, log.last_committed, log.is_stateful) == (0, 1, 1, False)
    assert (first.number, first.committed, first.size, first.fault) == (0, True, 0, "")
    assert second.size == 40
    assert second.sources["0"].start == first.sources["0"].end
    assert second.planned is not None
    assert first.planned is not None
    assert first.planned < second.planned
    assert second.planned.tzinfo is UTC
    (moved,) = log.diff(0, 1)
    assert moved.by == 40


@pytest.mark.parametrize("kind", sorted(folder.name for folder in (GOLDEN / "v0.2").iterdir()))
def test_an_entry_is_written_as_spark_wrote_it(kind: str) -> None:
    for file in (GOLDEN / "v0.2" / kind / "offsets").iterdir():
        assert Entry.parse(file.read_bytes()).write() == file.read_bytes()


def test_batches_tell_when_they_were_planned_what_they_read_and_whether_they_ended(tmp_path: Path) -> None:
    log = Log(str(checkpoint(tmp_path, (1, 11, 31), committed=False)))
    batches = log.batches()
    assert [(b.number, b.committed, b.size) for b in batches] == [(0, True, 0), (1, True, 10), (2, False, 20)]
    assert batches[2].planned == datetime.fromtimestamp(BEGAN / 1000, UTC) + timedelta(minutes=2)
    assert (log.last_planned, log.last_committed) == (2, 1)
    end = batches[2].sources["0"].end
    assert end is not None
    assert (end.kind, end.positions) == ("penstock", {"ORDERS": 31})


def test_what_retention_took_is_not_there_and_the_first_batch_has_no_start(tmp_path: Path) -> None:
    log = Log(str(checkpoint(tmp_path, (41, 51, 61), first=7)))
    assert log.known_from == 7
    first, second, _ = log.batches()
    assert (first.sources["0"].start, first.size, second.size) == (None, None, 10)
    with pytest.raises(OptionError, match=r"batch 3 is no longer in the checkpoint .* known from batch 7 on"):
        log.diff(3, 8)
    with pytest.raises(OptionError, match=r"batch 12 is not in the checkpoint .* batches 7 to 9"):
        log.diff(7, 12)


@pytest.mark.parametrize(
    ("text", "kind", "positions"),
    [
        (ours(17), "penstock", {"ORDERS": 17}),
        ('{"orders":{"1":23,"0":17}}', "kafka", {"orders-1": 23, "orders-0": 17}),
        ('{"logOffset":3}', "files", {"logOffset": 3}),
        ("17", "number", {"offset": 17}),
        ('{"0": 30, "1": 30}', "unknown", None),
        ('{"offset":3,"timestamp":5}', "unknown", None),
        ('{"epochs": {}, "next": {"ORDERS": 17}, "version": 2}', "unknown", None),
        ('{"version": 1, "epochs": 4, "next": 5}', "unknown", None),
        ("{}", "unknown", None),
        ("null", "unknown", None),
        ("true", "unknown", None),
        ("some words", "unknown", None),
    ],
)
def test_offsets_of_all_sources_are_shown(text: str, kind: str, positions: dict[str, int] | None) -> None:
    assert Offset.parse(text) == Offset(text, kind, positions)


@pytest.mark.parametrize(
    ("start", "end", "size"),
    [
        ('{"t":{"0":5,"1":5}}', '{"t":{"0":9,"1":6}}', 5),
        ('{"t":{"0":5}}', '{"t":{"0":9,"1":6}}', None),  # where partition 1 begins is not in the log
        ('{"t":{"0":5}}', '{"t":{"0":3}}', 0),  # set back
        ('{"logOffset":3}', '{"logOffset":7}', 4),
        ("17", "27", 10),
        ("-", "27", None),
        ('{"0": 1}', '{"0": 2}', None),
        (read(5), read(3), 0),
        (ours(5), ours(9), None),  # no Penstock writes that: rows, and not how they are cut
        (ours(5), ours(9, begins={"ORDERS": 8}, perTask=100), 1),  # five to seven were lost
    ],
)
def test_the_size_of_a_batch_is_computed_where_it_can_be(
    tmp_path: Path, start: str, end: str, size: int | None
) -> None:
    checkpoint(tmp_path, ())
    batch(tmp_path, 3, [start])
    batch(tmp_path, 4, [end])
    assert Log(str(tmp_path)).batches()[1].size == size


def test_a_diff_tells_each_shard_of_each_source(tmp_path: Path) -> None:
    checkpoint(tmp_path, ())
    batch(tmp_path, 0, ['{"t":{"0":5,"1":5}}', read(7), '{"0": 1}', "-", "3"])
    batch(tmp_path, 1, ['{"t":{"0":9,"1":5,"2":1}}', read(9), '{"0": 2}', "4", "3"])
    log = Log(str(tmp_path))
    assert log.diff(0, 1) == [
        Move("0", "t-0", 5, 9),
        Move("0", "t-2", None, 1),
        Move("1", "ORDERS", 7, 9),
        Move("2", "", '{"0": 1}', '{"0": 2}'),
        Move("3", "offset", None, 4),
    ]
    assert [move.by for move in log.diff(0, 1)] == [4, None, 2, None, None]
    assert log.diff(1, 0)[0].by == -4
    assert log.diff(1, 1) == []


def test_a_query_that_names_its_sources_is_read_by_their_names(tmp_path: Path) -> None:
    checkpoint(tmp_path, ())
    batch(tmp_path, 0, {"orders": ours(1), "clicks": '{"t":{"0":5}}'}, version=2)
    batch(tmp_path, 1, {"clicks": '{"t":{"0":7}}', "orders": read(4)}, version=2)
    first, second = Log(str(tmp_path)).batches()
    assert [*first.sources] == ["orders", "clicks"]
    assert {name: span.size for name, span in second.sources.items()} == {"orders": 3, "clicks": 2}
    file = tmp_path / "offsets" / "1"
    assert Entry.parse(file.read_bytes()).write() == file.read_bytes()


def test_drafts_and_checksums_are_no_batches(tmp_path: Path) -> None:
    checkpoint(tmp_path, (1, 11))
    for name in (".2.6b1c.tmp", "..2.6b1c.tmp.crc", ".2.crc", "2.crc", "2.tmp"):
        for folder in ("offsets", "commits"):
            (tmp_path / folder / name).write_text("v1")
    log = Log(str(tmp_path))
    assert [b.number for b in log.batches()] == [0, 1]
    assert (log.last_planned, log.last_committed) == (1, 1)


@pytest.mark.parametrize(
    ("damaged", "why"),
    [
        ("", "offsets/1 of checkpoint .* is empty: its writing was cut off"),
        ("v1", "is not whole"),
        ("v1\n{}", "is not whole"),
        ("v1\n{}\n" + read(11)[:40], "has a line that is not whole: "),
        ('v1\n{"batchTimes\n17', "has a line that is not whole: "),
        ("v3\n{}\n17", "has format v3, and this Penstock reads up to v2: a newer Spark wrote it"),
        ("\0\0\0", "does not begin with a version"),
        ("v2\n{}\n17", "has a source without a name"),
    ],
)
def test_a_damaged_batch_is_a_sentence_and_the_others_are_still_read(tmp_path: Path, damaged: str, why: str) -> None:
    checkpoint(tmp_path)
    (tmp_path / "offsets" / "1").write_text(damaged)
    log = Log(str(tmp_path))
    first, second, third, fourth = log.batches()
    assert (first.fault, third.fault, fourth.size) == ("", "", 10)
    assert (second.size, third.size) == (None, None)
    with pytest.raises(OptionError, match=why) as caught:
        log.diff(0, 1)
    assert str(caught.value) == second.fault


def test_bytes_that_are_no_text_are_a_sentence(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    (tmp_path / "offsets" / "1").write_bytes(b"v1\n\xff\xfe")
    assert Log(str(tmp_path)).batches()[1].fault.endswith("is no text.")


@pytest.mark.parametrize(
    ("damaged", "why"),
    [
        ("", "is empty"),
        ("v4\n{}", "has format v4, and this Penstock reads up to v3"),
        ("{}", "does not begin with a v"),
    ],
)
def test_a_damaged_commit_is_a_sentence(tmp_path: Path, damaged: str, why: str) -> None:
    checkpoint(tmp_path)
    (tmp_path / "commits" / "2").write_text(damaged)
    with pytest.raises(OptionError, match=f"commits/2 of checkpoint .* {why}"):
        Log(str(tmp_path)).commit(2)
    with pytest.raises(OptionError, match=r"commits/9 of checkpoint .* is not there"):
        Log(str(tmp_path)).commit(9)


def test_a_commit_whose_writing_was_cut_off_is_none(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    (tmp_path / "commits" / "3").write_text("")
    assert Log(str(tmp_path)).last_committed == 2


def test_commits_of_newer_formats_are_read(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    (tmp_path / "commits" / "2").write_text('v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{"0":[["a"]]}}')
    assert Log(str(tmp_path)).commit(2).startswith(b"v2")
    assert Log(str(tmp_path)).commit(1).decode() == COMMITTED


def test_where_there_is_no_checkpoint_a_sentence_says_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"there is no checkpoint at '.*/nowhere': no such folder"):
        Log(str(tmp_path / "nowhere"))
    with pytest.raises(OptionError, match="is empty: no query has begun there"):
        Log(str(tmp_path))
    (tmp_path / "penstock.lease").write_text("{}")
    with pytest.raises(OptionError, match="is empty: no query has begun there"):
        Log(str(tmp_path))
    (tmp_path / "part-0.parquet").write_text("")
    with pytest.raises(OptionError, match=r"is no checkpoint: .* but part-0.parquet"):
        Log(str(tmp_path))


def test_a_file_in_the_place_of_a_checkpoint_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PenstockError):
        Log(str(tmp_path / "file"))


def test_a_query_before_its_first_batch_has_an_id_and_no_batches(tmp_path: Path) -> None:
    put(tmp_path, "metadata", '{"id":"x"}')
    log = Log(str(tmp_path))
    assert (log.query_id, log.batches(), log.known_from, log.last_planned, log.last_committed) == (
        "x", [], None, None, None,
    )  # fmt: skip
    with pytest.raises(OptionError, match="has no batch yet"):
        log.diff(0, 1)


def test_a_lost_or_damaged_id_is_a_sentence(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    for damaged in ("", "{", "[]", '{"name":1}'):
        (tmp_path / "metadata").write_text(damaged)
        with pytest.raises(OptionError, match=r"'metadata' of checkpoint .* is damaged"):
            _ = Log(str(tmp_path)).query_id
    (tmp_path / "metadata").unlink()
    assert len(Log(str(tmp_path)).batches()) == 4
    with pytest.raises(OptionError, match="has no file 'metadata'"):
        _ = Log(str(tmp_path)).query_id


def test_state_makes_a_query_stateful_an_empty_folder_does_not(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    (tmp_path / "state").mkdir()
    assert not Log(str(tmp_path)).is_stateful
    state(tmp_path, ["1.delta"])
    assert Log(str(tmp_path)).is_stateful


def test_reading_changes_nothing(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    before = content(tmp_path)
    log = Log(str(tmp_path))
    log.batches(), log.diff(0, 3), log.query_id, log.last_committed
    assert content(tmp_path) == before


@pytest.mark.parametrize("form", ["{}", "{}/", "file://{}", "file:{}", "file://localhost{}"])
def test_a_location_on_a_disk_is_written_as_spark_takes_it(tmp_path: Path, form: str) -> None:
    folder = checkpoint(tmp_path / "with space %20 and +")
    assert Log(form.format(folder)).last_planned == 3


def test_a_location_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint(tmp_path / "c")
    monkeypatch.chdir(tmp_path)
    assert Log("c").last_planned == 3


@pytest.mark.parametrize("location", ["ftp://host/x", "", "/", "s3://"])
def test_a_location_that_cannot_be_one_is_a_sentence(location: str) -> None:
    with pytest.raises(PenstockError) as caught:
        storage.folder(location)
    assert type(caught.value) in (OptionError, ConnectError)


def test_what_is_secret_in_a_location_is_not_shown() -> None:
    given = "s3a://KEY:SECRET@bucket/checkpoints/a/?region=us-east-1&endpoint_override=127.0.0.1%3A1"
    found = storage.folder(given)
    assert (found.location, found.path, found.store.type_name) == (
        "s3a://bucket/checkpoints/a",
        "bucket/checkpoints/a",
        "s3",
    )
    assert found.beside(".x").location == "s3a://bucket/checkpoints/a.x"


def test_a_folder_that_cannot_be_read_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = storage.folder(str(checkpoint(tmp_path / "c")))
    shutil.rmtree(tmp_path / "c" / "offsets")
    (tmp_path / "c" / "offsets").mkdir()
    (tmp_path / "c" / "offsets" / "3").mkdir()
    with pytest.raises(ConnectError, match="cannot be used"):
        folder.read("offsets/3")


def test_what_is_written_to_a_disk_is_never_half_there(tmp_path: Path) -> None:
    folder = storage.folder(str(tmp_path))
    folder.write("a/b", b"one")
    before = (tmp_path / "a" / "b").stat().st_ino
    folder.write("a/b", b"two")
    assert folder.read("a/b") == b"two"
    assert (tmp_path / "a" / "b").stat().st_ino != before, "another file was put in its place"
    assert folder.names() == ["a"]
    assert [*folder.files()] == ["a/b"]
