import json
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from checkpoint_files import BEGAN, batch, checkpoint, content, ours, put, read, state
from penstock.checkpoints import lease, storage
from penstock.checkpoints.entries import set_back
from penstock.checkpoints.log import Log
from penstock.checkpoints.pieces import pieces, stores_without
from penstock.checkpoints.rewind import Rewound, SinkMemory, rewind
from penstock.errors import ConnectError, OptionError

ID = "4949678e-5a8b-467a-a0e9-ba0697f6c0f2"
BY_BATCH = SinkMemory("d", "by-batch")
AGAIN, REMEMBERS, FILES = SinkMemory("a", "again"), SinkMemory("b", "remembers"), SinkMemory("c", "skips-files")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else wants the lease, so there is nothing to wait for."""
    monkeypatch.setattr(lease, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: None))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Batches 0 to 3, which end at 1, 11, 21 and 31."""
    return checkpoint(tmp_path / "c")


def at(minutes: float) -> datetime:
    """So long after batch 0 was planned; a batch is planned each minute."""
    return datetime.fromtimestamp(BEGAN / 1000, UTC) + timedelta(minutes=minutes)


def positions(rewound: Rewound, source: str = "0") -> Any:
    offset = rewound.positions[source]
    return offset and offset.positions


def numbers(folder: Path) -> tuple[list[int], list[int]]:
    log = Log(str(folder))
    return log.planned, log.committed


def test_a_rewind_to_a_batch_removes_what_is_behind_and_nothing_else(folder: Path) -> None:
    before = content(folder)
    done = rewind(str(folder), 1)
    gone = {f"{f}/{n}" for f in ("offsets", "commits") for n in ("2", "3", ".2.crc", ".3.crc")}
    assert content(folder) == {name: data for name, data in before.items() if name not in gone}
    assert done.copy is not None
    assert (done.kept, done.removed, done.next_batch, done.query_id, positions(done)) == (
        1,
        (2, 3),
        2,
        ID,
        {"ORDERS": 11},
    )


def test_the_copy_is_the_whole_checkpoint_as_it_was(folder: Path) -> None:
    state(folder, [f"{n}.delta" for n in range(1, 5)])
    put(folder, "sources/0/0", "v1")
    before = content(folder)
    done = rewind(str(folder), 1)
    assert done.copy is not None
    assert Path(done.copy).parent == folder.parent
    assert Path(done.copy).name.startswith("c.before-rewind-20")
    assert content(Path(done.copy)) == before


def test_the_copy_goes_where_it_is_told_to(folder: Path, tmp_path: Path) -> None:
    before = content(folder)
    assert rewind(str(folder), 1, copy_to=str(tmp_path / "d" / "e")).copy == str(tmp_path / "d" / "e")
    assert content(tmp_path / "d" / "e") == before


@pytest.mark.parametrize("where", ["c", "c/copy", "full"])
def test_a_copy_never_goes_into_the_checkpoint_or_over_something(folder: Path, tmp_path: Path, where: str) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    before = content(tmp_path)
    with pytest.raises(OptionError, match="copy"):
        rewind(str(folder), 1, copy_to=str(tmp_path / where))
    assert content(tmp_path) == before


def test_a_copy_that_does_not_arrive_stops_the_rewind_and_says_that_it_is_not_whole(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = storage.Folder.files
    # As if one file had arrived with half of its bytes.
    monkeypatch.setattr(
        storage.Folder, "files", lambda self, under="": {
            name: size // 2 if self.path.endswith("/elsewhere") and name == "offsets/1" else size
            for name, size in files(self, under).items()
        },
    )  # fmt: skip
    before = content(folder)
    with pytest.raises(ConnectError, match="is not whole: offsets/1"):
        rewind(str(folder), 1, copy_to=str(tmp_path / "elsewhere"))
    assert content(folder) == before
    assert (tmp_path / "elsewhere" / "penstock.copying").exists()


def test_to_where_it_stands_nothing_is_done(folder: Path, tmp_path: Path) -> None:
    before = content(tmp_path)
    for to in (3, at(99), {"ORDERS": 31}):
        done = rewind(str(folder), to, sinks=[REMEMBERS, FILES])
        assert (done.kept, done.removed, done.copy, done.next_batch) == (3, (), None, 4)
    assert content(tmp_path) == before


@pytest.mark.parametrize(("minutes", "kept"), [(0.001, 0), (1, 0), (1.5, 1), (2.001, 2), (3, 2)])
def test_batches_planned_before_a_time_stay(folder: Path, minutes: float, kept: int) -> None:
    assert rewind(str(folder), at(minutes)).kept == kept
    assert numbers(folder) == ([*range(kept + 1)], [*range(kept + 1)])


def test_a_batch_that_was_planned_before_the_time_stays_though_it_did_not_finish(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", committed=False)
    assert rewind(str(folder), at(3.5)).removed == ()
    assert numbers(folder) == ([0, 1, 2, 3], [0, 1, 2])
    assert rewind(str(folder), at(3)).removed == (3,)
    assert numbers(folder) == ([0, 1, 2], [0, 1, 2])


def test_a_batch_that_did_not_finish_is_removed_and_planned_anew(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", committed=False)
    assert rewind(str(folder), 2).removed == (3,)
    assert numbers(folder) == ([0, 1, 2], [0, 1, 2])


def test_a_damaged_batch_can_be_left_behind(folder: Path) -> None:
    (folder / "offsets" / "3").write_text("")
    assert rewind(str(folder), 2).removed == (3,)


# Positions


def test_a_rewind_to_positions_writes_a_batch_that_ends_there(folder: Path) -> None:
    before = content(folder)
    done = rewind(str(folder), {"ORDERS": 14})
    assert (done.kept, done.removed, done.next_batch, positions(done)) == (3, (), 5, {"ORDERS": 14})
    after = content(folder)
    assert {name: data for name, data in after.items() if name in before} == before
    assert after.keys() - before.keys() == {"offsets/4", "commits/4"}
    assert after["commits/4"] == before["commits/3"]
    version, planning, line = after["offsets/4"].decode().split("\n")
    assert [version, planning] == before["offsets/3"].decode().split("\n")[:2]
    # No mark, as that is of record 30; no perTask, as nothing is read. Sorted, as Spark compares texts.
    assert line == '{"epochs": {"ORDERS": "e"}, "next": {"ORDERS": 14}, "version": 1}'
    assert Log(str(folder)).batches()[4].size == 0
    assert rewind(str(folder), '{"ORDERS": 14}').copy is None, "it stands there already"


def test_other_shards_and_other_sources_stay_where_they_are() -> None:
    text = json.dumps(
        {"cuts": {"A": [3]}, "epochs": {"A": "x", "B": "y"}, "marks": {"A": "p", "B": "q"},
         "next": {"A": 7, "B": 9}, "notes": {"A": "n"}, "perTask": 5, "version": 1}
    )  # fmt: skip
    assert json.loads(set_back(text, {"A": 2, "B": 9})) == {
        "epochs": {"A": "x", "B": "y"}, "marks": {"B": "q"}, "next": {"A": 2, "B": 9}, "notes": {"A": "n"},
        "version": 1,
    }  # fmt: skip
    assert set_back(text, {"B": 9}) == text


def test_positions_of_kafka_are_set_back_as_its_source_writes_them(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", ())
    batch(folder, 0, ['{"t":{"0":15,"1":15},"u":{"0":4}}', read(9)])
    with pytest.raises(OptionError, match=r"several sources: say of which the positions are. There are: 0, 1"):
        rewind(str(folder), {"t": {"1": 3}})
    with pytest.raises(OptionError, match=r"no source '2'"):
        rewind(str(folder), {"t": {"1": 3}}, source="2")
    done = rewind(str(folder), {"t": {"1": 3}}, source="0")
    assert positions(done) == {"t-0": 15, "t-1": 3, "u-0": 4}
    assert (folder / "offsets" / "1").read_text().split("\n")[2:] == ['{"t":{"0":15,"1":3},"u":{"0":4}}', read(9)]


def test_positions_of_a_named_source_keep_the_names(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", ())
    batch(folder, 0, {"orders": read(9), "clicks": "17"}, version=2)
    rewind(str(folder), {"ORDERS": 3}, source="orders")
    assert (folder / "offsets" / "1").read_text().split("\n")[2:] == [f"orders:{ours(3)}", "clicks:17"]


@pytest.mark.parametrize(
    ("offset", "to", "why"),
    [
        (read(9), {"ORDERS": 12}, "position 12 of 'ORDERS' is ahead of 9, where the query stands"),
        (read(9), {"ORDES": 3}, "the query reads no 'ORDES'. Did you mean 'ORDERS'?"),
        (read(9), {"ORDERS": {"0": 3}}, "positions are written as"),
        (read(9), {"ORDERS": -1}, "positions are written as"),
        (read(9), {"ORDERS": True}, "positions are written as"),
        (read(9).replace('"version": 1', '"version": 2'), {"ORDERS": 3}, "Upgrade Penstock"),
        ('{"t":{"0":15}}', {"t": {"1": 3}}, "the query reads no 't-1'. Did you mean 't-0'?"),
        ('{"t":{"0":15}}', {"t": {"0": 16}}, "position 16 of 't-0' is ahead of 15"),
        ('{"t":{"0":15}}', {"t": 3}, "positions in Kafka are written as"),
        ('{"logOffset":3}', {"logOffset": 1}, "positions can be set in sources of Penstock and of Kafka"),
        ('{"0": 3}', {"0": 1}, "positions can be set in sources of Penstock and of Kafka"),
        ("-", {"0": 1}, "positions can be set in sources of Penstock and of Kafka"),
        (read(9), "ORDERS=3", "positions must be JSON such as"),
        (read(9), "[3]", "positions must be JSON such as"),
    ],
)
def test_positions_that_cannot_be_are_refused(tmp_path: Path, offset: str, to: Any, why: str) -> None:
    folder = checkpoint(tmp_path / "c", ())
    batch(folder, 0, [offset])
    before = content(tmp_path)
    with pytest.raises(OptionError) as caught:
        rewind(str(folder), to)
    assert why in str(caught.value)
    assert content(tmp_path) == before


# State


def test_the_state_of_later_batches_is_removed_too(folder: Path) -> None:
    """Spark would load a whole state that was left over: seen as 83 rows counted where there were 63."""
    state(folder, ["1.delta", "2.delta", "2.snapshot", "3.delta", "4.delta", "4.snapshot"])
    state(folder, ["2_a1-b2.changelog", "3_a1-b2.zip", "3_a1-b2.zip.crc"], store="state/0/1/left-keyToNumValues")
    put(folder, "state/0/0/_metadata/schema", "v1")
    put(folder, "state/0/_metadata/v2/0", "v2")
    put(folder, "state/0/_metadata/v2/2", "v2")
    (folder / "state/0/1/left-keyToNumValues/SSTs").mkdir()
    (folder / "state/0/1/left-keyToNumValues/SSTs/000008-1f.sst").write_text("")
    (folder / "state/0/1/left-keyToNumValues/1_a1-b2.zip").write_text("")
    rewind(str(folder), 1)
    left = sorted(name for name in content(folder) if name.startswith("state/") and not name.endswith(".crc"))
    assert left == [
        "state/0/0/1.delta", "state/0/0/2.delta", "state/0/0/2.snapshot", "state/0/0/_metadata/schema",
        "state/0/1/left-keyToNumValues/1_a1-b2.zip", "state/0/1/left-keyToNumValues/2_a1-b2.changelog",
        "state/0/1/left-keyToNumValues/SSTs/000008-1f.sst", "state/0/_metadata/metadata", "state/0/_metadata/v2/0",
    ]  # fmt: skip
    for name in content(folder):
        if name.endswith(".crc") and not name.startswith(("state/0/_m", ".m")):
            file = Path(name)
            assert (folder / file.parent / file.name[1:].removesuffix(".crc")).exists(), f"{name} is left over"


@pytest.mark.parametrize(
    ("names", "lacking"),
    [
        (["1.delta", "2.delta", "3.delta"], []),
        (["3.snapshot"], []),
        (["2.snapshot", "3.delta"], []),
        (["2.delta", "3.delta"], ["state/0/0"]),  # what was before version 2 is gone
        (["3.delta"], ["state/0/0"]),
        (["1.snapshot", "3.delta"], ["state/0/0"]),
        (["2.snapshot", "4.snapshot"], ["state/0/0"]),
        (["3.zip"], []),
        (["3_0a-1b.zip"], []),
        (["2_0a-1b.zip", "3_0a-1c.changelog"], []),
        (["2.zip", "4.zip"], ["state/0/0"]),
        (["3.delta.crc", "4.delta"], ["state/0/0"]),
    ],
)
def test_the_state_of_a_batch_is_whole_or_it_can_be_put_together(names: list[str], lacking: list[str]) -> None:
    assert stores_without([f"state/0/0/{name}" for name in names], 2) == lacking


def test_a_batch_whose_state_is_gone_is_refused(folder: Path, tmp_path: Path) -> None:
    state(folder, ["1.delta", "2.delta", "3.delta", "3.snapshot", "4.delta"])
    state(folder, ["3.zip", "4.zip"], store="state/1/0")
    before = content(tmp_path)
    with pytest.raises(OptionError, match=r"state .* after batch 1 is no longer .*state/1/0.* for batches 2 to 3"):
        rewind(str(folder), 1)
    assert content(tmp_path) == before
    assert rewind(str(folder), 2).removed == (3,)


@pytest.mark.parametrize(("to", "new"), [({"ORDERS": 3}, False), (1, True), ({"ORDERS": 3}, True)])
def test_state_belongs_to_a_batch(folder: Path, tmp_path: Path, to: Any, new: bool) -> None:
    state(folder, [f"{n}.delta" for n in range(1, 5)])
    before = content(tmp_path)
    with pytest.raises(OptionError, match=r"has state .* not to positions, and not as a new query"):
        rewind(str(folder), to, new_query=new)
    assert content(tmp_path) == before


# What is refused


@pytest.mark.parametrize(
    ("to", "why"),
    [
        (7, "batch 7 is not in the checkpoint .* batches 4 to 6"),
        (3, "batch 3 is no longer .* known from batch 4 on.*To read from further back, start with a new"),
        (-1, "batch -1 is no longer"),
        (
            4,
            "batch 4 is the first .* before it to start. The earliest that can be kept is batch 5",
        ),
        (6, "batch 6 .* is not committed: .* The last one that can be kept is 5"),
        (at(4), "no committed batch .* was planned before .* the first that is known is batch 4, planned at"),
        (at(4.5), "batch 4 is the first"),
        (datetime(2026, 1, 1), "has no zone"),  # noqa: DTZ001
    ],
)
def test_batches_that_cannot_be_kept_are_refused(tmp_path: Path, to: Any, why: str) -> None:
    folder = checkpoint(tmp_path / "c", (41, 51, 61), first=4, committed=False)
    before = content(tmp_path)
    with pytest.raises(OptionError, match=why):
        rewind(str(folder), to)
    assert content(tmp_path) == before


def test_a_damaged_batch_cannot_be_kept_nor_can_the_one_behind_it(folder: Path, tmp_path: Path) -> None:
    (folder / "offsets" / "1").write_text("v1\n")
    before = content(tmp_path)
    for to in (1, 2):
        with pytest.raises(OptionError, match=r"offsets/1 of checkpoint .* is not whole"):
            rewind(str(folder), to)
    (folder / "offsets" / "1").write_bytes(before["c/offsets/0"])
    (folder / "commits" / "1").write_text("v9\n")
    with pytest.raises(OptionError, match=r"commits/1 of checkpoint .* a newer Spark wrote it"):
        rewind(str(folder), 1)


def test_a_query_without_a_committed_batch_is_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", (1,), committed=False)
    for to in (0, at(5), {"ORDERS": 1}):
        with pytest.raises(OptionError, match="no batch that was committed"):
            rewind(str(folder), to)


def test_where_there_is_no_checkpoint_none_is_made(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="there is no checkpoint"):
        rewind(str(tmp_path / "c"), 1)
    assert not content(tmp_path)


def test_sinks_that_would_lose_rows_are_refused(folder: Path, tmp_path: Path) -> None:
    before = content(tmp_path)
    with pytest.raises(OptionError, match=r"sink 'b' remembers .* --new-query"):
        rewind(str(folder), 1, sinks=[AGAIN, REMEMBERS])
    for new in (False, True):
        with pytest.raises(OptionError, match=r"sink 'c' is Spark's sink of files.*another path"):
            rewind(str(folder), 1, sinks=[AGAIN, FILES], new_query=new)
    with pytest.raises(OptionError, match=r"sink 'd' has a folder for each batch.* --new-query"):
        rewind(str(folder), 1, sinks=[AGAIN, BY_BATCH])
    assert content(tmp_path) == before
    assert rewind(str(folder), 1, sinks=[AGAIN]).kept == 1


def test_a_checkpoint_that_is_in_use_is_refused(folder: Path, tmp_path: Path) -> None:
    with lease.Lease(str(folder), ttl=0.6):
        before = {name: data for name, data in content(tmp_path).items() if "lease" not in name}
        with pytest.raises(lease.InUseError, match=r"is in use by process \d+ on host .*: stop it first"):
            rewind(str(folder), 1, ttl=0.6)
        assert {name: data for name, data in content(tmp_path).items() if "lease" not in name} == before
    assert rewind(str(folder), 1, ttl=0.6).kept == 1
    assert "penstock.lease" not in content(folder)


# A new query


def test_a_new_query_begins_with_a_batch_that_ends_where_the_old_one_is_set_back_to(folder: Path) -> None:
    put(folder, "sources/0/0", "v1 of files")
    before = content(folder)
    done = rewind(str(folder), 1, sinks=[REMEMBERS], new_query=True)
    assert (done.kept, done.removed, done.next_batch, positions(done)) == (1, (2, 3), 0, {"ORDERS": 11})
    assert done.query_id != ID
    assert content(folder) == {
        "metadata": f'{{"id":"{done.query_id}"}}'.encode(),
        "offsets/0": before["offsets/1"],
        "sources/0/0": before["sources/0/0"],
        "sources/0/.0.crc": before["sources/0/.0.crc"],
    }
    assert done.copy is not None
    assert content(Path(done.copy)) == before
    assert Log(str(folder)).query_id == done.query_id


def test_a_new_query_can_begin_at_positions_and_at_the_first_batch_that_is_known(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", (41, 51, 61), first=4)
    assert positions(rewind(str(folder), {"ORDERS": 7}, new_query=True)) == {"ORDERS": 7}
    folder = checkpoint(tmp_path / "d", (41, 51, 61), first=4)
    assert positions(rewind(str(folder), 4, new_query=True)) == {"ORDERS": 41}
    assert numbers(folder) == ([0], []), "batch 0 is left to be run, so that sinks have a note of it"


def test_a_new_query_on_files_does_not_read_them_from_the_beginning(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", (41, 51, 61))
    for number in range(3):
        head = (folder / "offsets" / str(number)).read_text().splitlines()[:2]
        put(folder, f"offsets/{number}", "\n".join([*head, f'{{"logOffset":{number}}}']))
    rewind(str(folder), 1, new_query=True)
    assert numbers(folder) == ([0], [0]), "a batch 0 that is run would begin with the first file"


def test_a_new_query_on_kafka_begins_where_it_is_set_back_to(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", (41, 51, 61))
    for number in range(3):
        head = (folder / "offsets" / str(number)).read_text().splitlines()[:2]
        put(folder, f"offsets/{number}", "\n".join([*head, f'{{"orders":{{"0":{10 * number}}}}}']))
    put(folder, "sources/0/0", '\x00v1\n{"orders":{"0":0}}')
    rewind(str(folder), 1, new_query=True)
    assert numbers(folder) == ([0], [])
    assert (folder / "sources/0/0").read_text() == '\x00v1\n{"orders":{"0":10}}'


# Cut off at any moment


class Cut(BaseException):
    """As if the process had been killed."""


def cut_off_at_each_change(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[int], Path], to: Any, **more: Any
) -> list[tuple[Path, Rewound]]:
    """Rewind one checkpoint after the other, each cut off one change later; and once more, to the end."""
    remove, write = storage.Folder.remove, storage.Folder.write
    ended = []
    for allowed in range(100):
        folder, left = make(allowed), allowed

        def spend(folder: storage.Folder, name: str, at: Path = folder) -> None:
            nonlocal left
            if folder.path == str(at) and "penstock.lease" not in name:
                if not left:
                    raise Cut
                left -= 1

        def cut_remove(self: storage.Folder, name: str, spend: Any = spend) -> None:
            spend(self, name)
            remove(self, name)

        def cut_write(self: storage.Folder, name: str, content: bytes, spend: Any = spend) -> None:
            spend(self, name)
            write(self, name, content)

        monkeypatch.setattr(storage.Folder, "remove", cut_remove)
        monkeypatch.setattr(storage.Folder, "write", cut_write)
        whole = None
        with suppress(Cut):
            whole = rewind(str(folder), to, **more)
        monkeypatch.setattr(storage.Folder, "remove", remove)
        monkeypatch.setattr(storage.Folder, "write", write)
        sparks_view(folder)
        ended.append((folder, whole or rewind(str(folder), to, **more)))
        if whole is not None:
            return ended
    raise AssertionError("it never ended")


def sparks_view(folder: Path) -> None:
    """What Spark needs to start from a checkpoint, or it must refuse to."""
    planned = [int(f.name) for f in (folder / "offsets").iterdir() if f.name.isdigit()]
    committed = [int(f.name) for f in (folder / "commits").iterdir() if f.name.isdigit()]
    if not (folder / "metadata").exists():
        assert planned, "Spark would start from nothing"
        assert (folder / "penstock.rewind").exists()
        return
    assert max(planned) - max(committed, default=-1) in (0, 1)
    assert sorted(planned) == [*range(max(planned) + 1)]
    assert sorted(committed) == [*range(max(committed, default=-1) + 1)], "a gap"
    for sub in ("offsets", "commits"):
        for checksum in (folder / sub).glob(".*.crc"):
            assert (folder / sub / checksum.name[1:].removesuffix(".crc")).exists(), f"{checksum} is left over"


def test_a_rewind_that_is_cut_off_is_finished_by_a_second_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(number: int) -> Path:
        folder = checkpoint(tmp_path / str(number))
        state(folder, [f"{n}.delta" for n in range(1, 5)])
        return folder

    ended = cut_off_at_each_change(monkeypatch, make, 1)
    assert len(ended) > 12
    expected = content(ended[-1][0])
    for folder, _ in ended:
        assert content(folder) == expected


def test_a_rewind_to_positions_that_is_cut_off_is_finished_by_a_second_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = cut_off_at_each_change(
        monkeypatch, lambda number: checkpoint(tmp_path / str(number), committed=False), {"ORDERS": 5}
    )
    assert len(ended) >= 5
    for folder, _ in ended:
        assert content(folder) == content(ended[-1][0])
        assert numbers(folder) == ([0, 1, 2, 3], [0, 1, 2, 3])


def test_a_rewind_to_a_new_query_that_is_cut_off_is_finished_by_a_second_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = cut_off_at_each_change(monkeypatch, lambda number: checkpoint(tmp_path / str(number)), 2, new_query=True)
    assert len(ended) > 15
    for folder, done in ended:
        after = content(folder)
        assert after.pop("metadata") == f'{{"id":"{done.query_id}"}}'.encode()
        assert after.keys() == {"offsets/0"}
        assert after["offsets/0"].decode().endswith(read(21))
        assert (done.kept, done.removed, positions(done)) == (2, (3,), {"ORDERS": 21})


def test_spark_and_readers_are_told_of_a_rewind_that_was_cut_off(folder: Path) -> None:
    (folder / "metadata").unlink()
    (folder / "penstock.rewind").write_text("{}")
    with pytest.raises(OptionError, match=r"was cut off. Call rewind on it again"):
        Log(str(folder))


def test_what_was_to_be_done_is_forgotten_once_the_query_has_run(folder: Path) -> None:
    """`penstock.rewind` is still there if a rewind was cut off before its last step; its query may have gone on."""
    (folder / "penstock.rewind").write_text(
        json.dumps({"id": ID, "offsets": "", "commit": "", "initial": {}, "kept": 9})
    )
    assert rewind(str(folder), 2).removed == (3,)
    assert not (folder / "penstock.rewind").exists()


def test_files_are_removed_in_the_reverse_of_the_order_in_which_spark_writes_them() -> None:
    names = [
        "metadata", "offsets/1", "offsets/.1.crc", "commits/1", "commits/.1.crc", "state/0/0/2.delta",
        "state/0/0/.2.delta.crc", "offsets/10", "commits/10", "state/0/0/11.zip", "offsets/.1.x.tmp", "commits/0",
        "state/0/0/1.delta",
    ]  # fmt: skip
    assert [piece.name for piece in pieces(names, above=0)] == [
        "commits/10", "state/0/0/11.zip", "offsets/10",
        "commits/.1.crc", "commits/1", "state/0/0/.2.delta.crc", "state/0/0/2.delta", "offsets/.1.crc", "offsets/1",
    ]  # fmt: skip


def test_a_rewind_stops_when_its_lease_is_lost(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove = storage.Folder.remove

    def lose(self: storage.Folder, name: str) -> None:
        remove(self, name)
        if name == "commits/3":
            holder = json.loads((folder / "penstock.lease").read_text())
            (folder / "penstock.lease").write_text(json.dumps(holder | {"owner": "another"}))
            held[0].renew()

    held: list[lease.Lease] = []
    take = lease.Lease.take
    monkeypatch.setattr(lease.Lease, "take", lambda self: held.append(self) or take(self))
    monkeypatch.setattr(storage.Folder, "remove", lose)
    with pytest.raises(lease.InUseError, match="was lost"):
        rewind(str(folder), 1)
    assert numbers(folder) == ([0, 1, 2, 3], [0, 1, 2])
