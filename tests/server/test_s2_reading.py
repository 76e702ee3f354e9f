"""Reading S2 for real: starts, gaps, commands, discovery, faults."""

import base64
import itertools
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from http_double import HttpDouble, passed_on
from s2_sdk import CommandRecord, Record, Timestamping
from s2_sources_and_sinks import QUICK, read, source, trimmed, until, values, write

from penstock.clients.s2.calls import Calls
from penstock.connectors.s2 import S2Streams
from penstock.errors import ConnectError, DataLossError, OptionError
from penstock.planning.planner import Planner
from penstock.planning.positions import Range
from penstock.testing.proxy import Proxy
from penstock.testing.s2_lite import S2Lite
from s2_servers import Cloud, S2Admin, lite

_names = itertools.count(1)
Server = S2Lite | Cloud


@pytest.fixture
def name() -> str:
    return f"read-{time.time_ns()}-{next(_names)}"


def test_a_record_comes_with_all_that_it_has(s2: Server, s2_admin: S2Admin, name: str) -> None:
    s2_admin.make(name, timestamping=None)
    moment = int(time.time() * 1000) - 5000
    s2_admin.append(name, [Record(b"x", [(b"a", b"1"), (b"b", b"")], moment), Record(b"", [], moment + 1)])
    first, second = read(s2, name)
    assert first["value"] == b"x"
    assert first["headers"] == [{"key": "a", "value": b"1"}, {"key": "b", "value": b""}]
    assert first["timestamp"].timestamp() * 1000 == pytest.approx(moment, abs=0.5)
    assert (first["stream"], first["sequence"]) == (name, 0)
    assert (second["value"], second["headers"], second["sequence"]) == (b"", None, 1)


def test_a_record_of_the_far_future_costs_only_its_timestamp(s2: Server, s2_admin: S2Admin, name: str) -> None:
    s2_admin.make(name, timestamping=Timestamping(uncapped=True))
    moments = [5, 2**53, 2**63 - 1, 2**63, 2**64 - 1]
    s2_admin.append(name, [Record(b"%d" % moment, timestamp=moment) for moment in moments])
    opened = source(s2, streams=name)
    bound = opened.bounds()[name]
    rows = pa.Table.from_batches(opened.read(Range(name, 0, bound.next, bound.epoch)))
    assert rows["value"].to_pylist() == [b"%d" % moment for moment in moments]
    last = (2**63 - 1) // 1000 * 1000
    assert rows["timestamp"].cast(pa.int64()).to_pylist() == [5000, 2**53 * 1000, last, last, last]


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_every_record_is_read_in_order_however_it_travels(
    s2: Server, s2_admin: S2Admin, name: str, compression: str
) -> None:
    s2_admin.make(name)
    s2_admin.append(name, [b"%d" % i + b"y" * 50 for i in range(5000)])
    rows = read(s2, name, compression=compression)
    assert [row["sequence"] for row in rows] == list(range(5000))
    assert [row["value"] for row in rows] == [b"%d" % i + b"y" * 50 for i in range(5000)]
    assert [row["sequence"] for row in read(s2, name, 1234, 3456, compression=compression)] == list(range(1234, 3456))


def test_an_empty_stream_has_nothing_and_is_no_error(s2: Server, s2_admin: S2Admin, name: str) -> None:
    s2_admin.make(name)
    opened = source(s2, streams=name)
    assert opened.bounds()[name][:2] == (0, 0)
    assert opened.find(name, 0) == 0
    assert read(s2, name) == []


def test_fence_and_trim_records_are_rows_only_when_asked_for(s2: Server, s2_admin: S2Admin, name: str) -> None:
    s2_admin.make(name)
    s2_admin.append(name, [b"a"])
    s2_admin.command(name, CommandRecord.fence("tok"))
    s2_admin.append(name, [b"b"])
    assert [(row["sequence"], row["value"]) for row in read(s2, name)] == [(0, b"a"), (2, b"b")]
    shown = read(s2, name, includeCommandRecords="true")
    assert [row["sequence"] for row in shown] == [0, 1, 2]
    assert shown[1]["headers"] == [{"key": "", "value": b"fence"}]


def test_a_trimmed_head_is_where_earliest_begins_and_loss_for_who_was_before_it(
    s2: Server, s2_admin: S2Admin, name: str
) -> None:
    s2_admin.make(name)
    s2_admin.append(name, [b"%d" % i for i in range(100)])
    trimmed(s2_admin, name, 60)
    assert source(s2, streams=name).bounds()[name][:2] == (60, 101)
    with pytest.raises(DataLossError, match="starts at 60, but the query is at 20: 40 messages were deleted"):
        read(s2, name, 20)
    left = read(s2, name, 20, failOnDataLoss="false")
    assert [row["sequence"] for row in left] == list(range(60, 100))


def test_a_range_that_is_gone_altogether_is_loss_too(s2: Server, s2_admin: S2Admin, name: str) -> None:
    s2_admin.make(name)
    s2_admin.append(name, [b"%d" % i for i in range(100)])
    trimmed(s2_admin, name, 60)
    with pytest.raises(DataLossError, match="10 messages were deleted unread"):
        read(s2, name, 20, 30)
    assert read(s2, name, 20, 30, failOnDataLoss="false") == []


def test_records_trimmed_while_they_are_read_are_loss(s2: Server, s2_admin: S2Admin, name: str) -> None:
    s2_admin.make(name)
    s2_admin.append(name, [b"%d" % i for i in range(50)])
    opened = source(s2, streams=name)
    bound = opened.bounds()[name]
    trimmed(s2_admin, name, 50)
    with pytest.raises(DataLossError, match="50 messages were deleted unread"):
        list(opened.read(Range(name, 0, 50, bound.epoch)))


def test_a_stream_deleted_while_it_is_read_is_loss(s2: Server, s2_admin: S2Admin, name: str) -> None:
    s2_admin.make(name)
    s2_admin.append(name, [b"x"])
    opened = source(s2, streams=name)
    bound = opened.bounds()[name]
    s2_admin.delete(name)
    with pytest.raises(DataLossError, match=f"'{name}' is gone"):
        list(opened.read(Range(name, 0, 1, bound.epoch)))
    assert name not in opened.bounds()


def test_a_stream_made_again_has_another_epoch_at_once(s2: Server, s2_admin: S2Admin, name: str) -> None:
    s2_admin.make(name)
    s2_admin.append(name, [b"x"] * 5)
    opened = source(s2, streams=name)
    before = opened.bounds()[name]
    s2_admin.delete(name)
    s2_admin.make(name)
    s2_admin.append(name, [b"y"] * 2)
    after = opened.bounds()[name]
    assert after[:2] == (0, 2)
    assert after.epoch != before.epoch


@pytest.mark.parametrize("mode", ["records", "upsert"])
def test_a_replay_does_not_read_the_new_life_of_a_stream(s2: Server, s2_admin: S2Admin, name: str, mode: str) -> None:
    """What a task was planned for is deleted and made again, and has grown as long as before."""
    change: dict[str, Any] = {}
    if mode == "upsert":
        change = {"mode": "upsert", "keyColumns": "k", "columns": "k INT, v INT"}
    headers = [(b"@key", b'{"k":1}'), (b"@action", b"u")]
    for stream in ("old", "other"):
        s2_admin.make(f"{name}/{stream}")
        s2_admin.append(f"{name}/{stream}", [Record(b'{"v":1}', headers)] * 20)
    opened = source(s2, streamPrefix=f"{name}/", **change)
    spans = [Range(stream, 5, bound.next, bound.epoch) for stream, bound in opened.bounds().items()]
    s2_admin.delete(f"{name}/old")
    s2_admin.make(f"{name}/old")
    s2_admin.append(f"{name}/old", [Record(b'{"v":2}', headers)] * 30)
    told = rf"'{name}/old' was deleted and made again \(now 0 to 29, since .*\); the query stood at 5 of the old one"
    with pytest.raises(DataLossError, match=told):
        list(opened.read(spans[0]))
    with pytest.raises(DataLossError, match=told):
        list(opened.read_many(spans))
    lax = source(s2, streamPrefix=f"{name}/", failOnDataLoss="false", **change)
    assert list(lax.read(spans[0])) == []
    assert sum(map(len, lax.read_many(spans))) == 15, "the other stream is read all the same"
    now = [Range(stream, 0, bound.next, bound.epoch) for stream, bound in lax.bounds().items()]
    assert sum(map(len, lax.read_many(now))) == 50


def test_a_stream_made_again_while_the_server_was_away_is_not_read_on(s2: Server, s2_admin: S2Admin, name: str) -> None:
    s2_admin.make(name)
    s2_admin.append(name, [b"%d" % i + b"z" * 200 for i in range(20_000)])
    with Proxy(lite(s2).port, [("cut", 2_500_000)]) as proxy:
        opened = source(s2, endpoint=f"http://127.0.0.1:{proxy.port}", streams=name)
        bound = opened.bounds()[name]
        batches = opened.read(Range(name, 0, bound.next, bound.epoch))
        assert next(batches)["sequence"][0].as_py() == 0
        s2_admin.delete(name)
        s2_admin.make(name)
        s2_admin.append(name, [b"new"] * 20_000)
        with pytest.raises(DataLossError, match="was deleted and made again"):
            list(batches)


def test_many_streams_are_looked_up_by_pages_and_one_by_one() -> None:
    names = [f"a/{i:04}" for i in range(150)] + [f"a/z/{i}" for i in range(10)] + ["a/é,{x}"]
    with S2Lite() as server:
        admin = S2Admin(server)
        admin.make_all([*names, *(f"a/y/{i:04}" for i in range(1100))])
        calls = Calls(S2Streams.parse({**server.options(), "streamPrefix": "a/"}))
        found = calls.named([*names, "a/0000x", "a/", "a/zzz"])
        assert sorted(found) == sorted(names)
        assert found == {stream: made for stream, made in calls.streams("a/").items() if "/y/" not in stream}
        assert sorted(calls.named(names[::40])) == names[::40]
        assert calls.named([]) == {}
        assert calls.few("a/y/") == {}
        assert len(calls.few("a/z/")) == 10
        admin.delete(names[3])
        assert sorted(calls.named(names)) == sorted({*names} - {names[3]})
        calls.close()


def test_a_range_beyond_the_end_says_that_numbers_went_backwards(s2: Server, s2_admin: S2Admin, name: str) -> None:
    s2_admin.make(name)
    s2_admin.append(name, [b"x"] * 5)
    with pytest.raises(DataLossError, match="ends at 4, but the query already stands at 9"):
        read(s2, name, 0, 9)


def test_streams_are_found_by_prefix_and_new_ones_while_running(s2: Server, s2_admin: S2Admin, name: str) -> None:
    s2_admin.make(f"{name}/a")
    s2_admin.make(f"{name}x")
    opened = source(s2, streamPrefix=f"{name}/", discoveryInterval="1ms")
    assert set(opened.bounds()) == {f"{name}/a"}
    s2_admin.make(f"{name}/b")
    s2_admin.append(f"{name}/b", [b"1"])
    assert opened.bounds()[f"{name}/b"][:2] == (0, 1)


def test_a_misspelt_name_is_refused_with_those_like_it_and_makes_no_stream() -> None:
    with S2Lite(basin="makes-streams", config={"create_stream_on_read": True}) as server:
        admin = S2Admin(server)
        admin.make("orders")
        with pytest.raises(
            OptionError, match=r"has no stream 'order'. Did you mean 'orders'\? Check the options 'streams' and"
        ):
            source(server, streams="order").bounds()
        assert admin.names("") == ["orders"]
        admin.tail("order")
        assert admin.names("") == ["order", "orders"], "this basin makes no streams, so nothing was proven"


def test_a_deleted_stream_does_not_come_back_where_reading_makes_streams(tmp_path: Path) -> None:
    with S2Lite(basin="makes-streams", config={"create_stream_on_read": True}) as server:
        admin = S2Admin(server)
        admin.make("orders")
        admin.make("others")
        admin.append("orders", [b"x"] * 5)
        opened = source(server, streamPrefix="o", discoveryInterval="1h")
        by_name = source(server, streams="orders", discoveryInterval="1h", failOnDataLoss="false")
        span = Range("orders", 0, 5, opened.bounds()["orders"].epoch)
        by_name.bounds()
        admin.delete("orders")
        until(lambda: "orders" not in admin.names(""))
        for _ in range(3):
            assert list(opened.bounds()) == ["others"]
            assert list(by_name.bounds()) == []
        for read in (lambda: opened.read(span), lambda: opened.read_many([span, span])):
            with pytest.raises(
                DataLossError, match="'orders' is gone, or the options no longer name it; the query stood at 0"
            ):
                list(read())
        with pytest.raises(OptionError, match="has no stream 'orders'"):
            write(server, values(0, 10), stream="orders")
        assert admin.names("") == ["others"]
        write(server, values(0, 10), stream="orders", ensureStream="true", retention="2h")
        config = admin._run(lambda basin: basin.get_stream_config("orders"))
        assert config.retention_policy == 7200, "it was made by a look at it, not as the options say"


def test_an_encrypted_stream_is_written_and_read_with_its_key_alone() -> None:
    key, other = ({"encryptionKey": base64.b64encode(letter * 32).decode()} for letter in (b"a", b"b"))
    with S2Lite(basin="encrypted", config={"stream_cipher": "aegis-256"}) as server:
        S2Admin(server).make("secret")
        write(server, values(0, 10), stream="secret", **key)
        assert [row["value"] for row in read(server, "secret", **key)] == [b"%d" % i for i in range(10)]
        with pytest.raises(ConnectError, match=r"S2 cannot decrypt the stream.*Check the option 'encryptionSecret'"):
            read(server, "secret", **other)


def test_a_time_finds_the_first_record_not_older(s2: Server, s2_admin: S2Admin, name: str) -> None:
    s2_admin.make(name)
    now = int(time.time() * 1000) - 10_000
    s2_admin.append(name, [Record(b"%d" % i, [], now + 10 * i) for i in range(50)])
    opened = source(s2, streams=name)
    opened.bounds()
    assert opened.find(name, (now + 200) * 1000) == 20
    assert opened.find(name, (now + 200) * 1000 + 1) == 21
    assert opened.find(name, 0) == 0
    assert opened.find(name, (now + 10_000_000) * 1000) == 50


@pytest.mark.parametrize(
    ("sizes", "most"),
    [([10] * 8000 + [20_000] * 300, 30), ([500_000] + [10] * 8000, 6), ([10] + [20_000] * 300, 15)],
    ids=["small ones first", "one large one first", "one small one first"],
)
def test_a_batch_keeps_to_its_bytes_whatever_its_first_record_has(
    s2: Server, s2_admin: S2Admin, name: str, sizes: list[int], most: int
) -> None:
    limit = 1_000_000
    s2_admin.make(name)
    for records in ([b"x" * size for size in sizes[:-300]], [b"x" * size for size in sizes[-300:]]):
        step = 1000 if len(records) > 1000 else 40
        for low in range(0, len(records), step):
            s2_admin.append(name, records[low : low + step])
    assert s2_admin.tail(name) == len(sizes)
    opened = source(s2, streams=name, maxBytesPerTrigger=str(limit))
    plan = Planner(opened, opened.options, "earliest")
    at, batches = plan.next(plan.initial(), None), []
    while (end := plan.next(at, None)) != at:
        low, high = (place["next"][name] for place in (at, end))
        batches.append(sum(sizes[low:high]))
        at = end
    assert sum(batches) == sum(sizes)
    assert max(batches) <= max(2 * limit, max(sizes)), batches
    assert len(batches) <= most, batches


def test_a_thousand_streams_are_looked_at_in_one_go(s2: Server, s2_admin: S2Admin, name: str) -> None:
    names = [f"{name}/{i:04}" for i in range(300)]
    s2_admin.make_all(names)
    opened = source(s2, streamPrefix=f"{name}/")
    assert sorted(opened.bounds()) == names
    began = time.perf_counter()
    opened.bounds()
    assert time.perf_counter() - began < 2


def test_cuts_and_stalls_in_an_answer_lose_and_double_nothing(s2: Server, s2_admin: S2Admin, name: str) -> None:
    s2_admin.make(name)
    s2_admin.append(name, [b"%d" % i + b"z" * 200 for i in range(20_000)])
    s2 = lite(s2)
    plan = [("cut", 3_000), ("cut", 700_001), ("cut", 1_200_003), ("stall", 500_000)]
    with Proxy(s2.port, plan) as proxy:
        opened = source(s2, endpoint=f"http://127.0.0.1:{proxy.port}", streams=name, requestTimeout="500ms")
        opened._tails = {name: 1}  # as a running query
        bound = opened.bounds()[name]
        rows = [n for b in opened.read(Range(name, 0, bound.next, bound.epoch)) for n in b["sequence"].to_pylist()]
        assert rows == list(range(20_000))
        assert proxy.connections >= 4
        assert not proxy.plan


@pytest.mark.parametrize("polite", [True, False], ids=["said so", "just ended"])
def test_more_streams_are_read_than_a_proxy_answers_on_one_connection(
    s2: Server, s2_admin: S2Admin, name: str, polite: bool
) -> None:
    names = [f"{name}/{i:03}" for i in range(150)]
    s2_admin.make_all(names)
    for stream in names[::10]:
        s2_admin.append(stream, [stream.encode()] * 3)
    with HttpDouble(passed_on(lite(s2).port), most=10, polite=polite) as proxy:
        opened = source(s2, endpoint=proxy.url, streams=",".join(names), reconnectTimeout="1ms")
        bounds = opened.bounds()
        assert sorted(bounds) == names
        spans = [Range(stream, 0, bound.next, bound.epoch) for stream, bound in bounds.items() if bound.next]
        rows = [row for batch in opened.read_many(spans) for row in batch.to_pylist()]
        opened.close()
        assert sorted(row["value"].decode() for row in rows) == sorted(names[::10] * 3)
        assert len(proxy.heads) < 2 * (4 * len(names)), "what was answered was asked for again"


def test_a_connection_that_ended_after_its_last_answer_is_made_anew(s2: Server, s2_admin: S2Admin, name: str) -> None:
    s2_admin.make(name)
    with HttpDouble(passed_on(lite(s2).port), most=1, polite=False) as proxy:
        calls = Calls(S2Streams.parse({**s2.options(), "endpoint": proxy.url, "stream": name}))
        for _ in range(3):
            assert list(calls.named([name])) == [name]
        calls.close()
        assert proxy.connections == 3


def test_a_server_that_is_down_is_said_at_once_and_one_that_comes_back_is_waited_for(tmp_path: Path, name: str) -> None:
    with S2Lite(tmp_path / "data") as server:
        admin = S2Admin(server)
        admin.make(name)
        admin.append(name, [b"%d" % i for i in range(10)])
        opened = source(server, streams=name)
        bound = opened.bounds()[name]
        server.kill()
        with pytest.raises(ConnectError, match=f"127.0.0.1:{server.port}"):
            source(server, streams=name).bounds()
        plan = Planner(opened, opened.options.model_copy(update={"reconnect_timeout": 0.2}), "earliest")
        with pytest.raises(ConnectError, match=r"planning failed \d+ times"):
            plan.look()
        server.start()
        assert plan.look()[name] == bound
        assert len(list(opened.read(Range(name, 0, 10, bound.epoch)))) == 1


def test_an_unknown_basin_is_refused_with_those_like_it(s2: Server) -> None:
    with pytest.raises(
        OptionError,
        match=r"there is no basin 'penstock-tess'.*Did you mean 'penstock-test'\? Check the options 'basin'",
    ):
        source(s2, basin="penstock-tess", streams="x").bounds()


def test_what_answers_but_is_no_http_server_is_said() -> None:
    import socket
    import threading

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            client, _ = listener.accept()
            client.recv(65536)
            client.sendall(b"INFO {}\r\n\r\n")
            client.close()

        thread = threading.Thread(target=greet)
        thread.start()
        options = {"basin": "some-basin", "endpoint": f"http://127.0.0.1:{listener.getsockname()[1]}", "streams": "x"}
        with pytest.raises(ConnectError, match=r"does not speak HTTP/1.1"):
            S2Streams.open_source(S2Streams.parse({**QUICK, **options})).bounds()
        thread.join()


def test_token_and_key_never_show(s2: Server) -> None:
    options: dict[str, Any] = {"accessToken": "s3cret-token", "encryptionKey": "c2VjcmV0LWtleQ==", "streams": "nope"}
    opened = source(s2, **options)
    assert "s3cret" not in repr(opened.options) + str(opened.options)
    with pytest.raises(OptionError) as refused:
        opened.bounds()
    assert "s3cret" not in str(refused.value)
    with pytest.raises(OptionError) as wrong:
        S2Streams.parse({"basin": "some-basin", "streams": "x", "encryptionKey": "not base64!"})
    assert "not base64!" not in str(wrong.value)
    assert "encryptionSecret must be base64" in str(wrong.value)


def test_the_token_may_come_from_the_environment_or_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = {"basin": "some-basin", "streams": "x"}
    monkeypatch.setenv("S2_ACCESS_TOKEN", "from-env")
    assert S2Streams.parse(given).reveal("access_token") == "from-env"
    assert S2Streams.parse({**given, "accessToken": "own"}).reveal("access_token") == "own"
    file = tmp_path / "token"
    file.write_text("from-file\n")
    assert S2Streams.parse({**given, "accessTokenFile": str(file)}).reveal("access_token") == "from-file"


def test_short_ranges_are_read_together_and_odd_ones_as_ever(s2: Server, s2_admin: S2Admin, name: str) -> None:
    for i in range(5):
        s2_admin.make(f"{name}/{i}")
        s2_admin.append(f"{name}/{i}", [b"%d" % n for n in range(30)])
    s2_admin.command(f"{name}/1", CommandRecord.fence("tok"))
    s2_admin.append(f"{name}/2", [b"%d" % n for n in range(30, 1500)])
    trimmed(s2_admin, f"{name}/3", 10)
    opened = source(s2, streamPrefix=f"{name}/", failOnDataLoss="false")
    bounds = opened.bounds()
    spans = [Range(stream, 0, bound.next, bound.epoch) for stream, bound in bounds.items()]
    batches = list(opened.read_many(spans))
    found: dict[str, list[int]] = {}
    for batch in batches:
        for stream, value in zip(batch["stream"].to_pylist(), batch["value"].to_pylist(), strict=True):
            found.setdefault(stream[-1], []).append(int(value))
    assert found == {
        "0": list(range(30)),
        "1": list(range(30)),
        "2": list(range(1500)),
        "3": list(range(10, 30)),
        "4": list(range(30)),
    }
    assert len(batches) <= 5
    assert list(found) == ["0", "1", "2", "3", "4"], "another order in a replay would be other rows to a sink"
    with pytest.raises(DataLossError, match="10 messages were deleted unread"):
        list(source(s2, streamPrefix=f"{name}/").read_many(spans))


# Tables of changes


def change(s2: Server, name: str) -> None:
    """Two changes and a deletion; the note of both is null."""
    rows = {"_action": ["u", "u", "d"], "id": ["a", "b", "a"], "amount": [1, 2, None], "note": pa.nulls(3, pa.string())}
    write(s2, iter([pa.record_batch(rows)]), stream=name, mode="upsert", keyColumns="id", ensureStream="true")


@pytest.mark.parametrize("snapshot", ["false", "true"])
def test_a_column_that_no_change_has_is_warned_of_with_those_like_it(
    s2: Server, name: str, snapshot: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(s2, name)
    monkeypatch.delattr(sys, "_penstock_s2_missing_columns", raising=False)
    given = {"mode": "upsert", "keyColumns": "id", "snapshot": snapshot}
    found = read(s2, name, columns="id STRING, amout BIGINT, note STRING", **given)
    assert {row["amout"] for row in found} == {None}
    told = (
        f"stream '{name}': the schema has a column 'amout', but none of 2 changes that were read has it: it is null in "
        "all of their rows. Did you mean 'amount'?"
    )
    assert caplog.messages == [told]
    read(s2, name, columns="id STRING, amout BIGINT", **given)
    assert caplog.messages == [told], "a stream query would say so in every batch"
    caplog.clear()
    assert len(read(s2, name, columns="id STRING, amount BIGINT, note STRING, _action STRING", **given)) in (1, 3)
    assert caplog.messages == []


def test_a_key_column_that_no_key_has_is_refused(s2: Server, name: str) -> None:
    change(s2, name)
    with pytest.raises(OptionError, match=r"record 0 .*id.*a.* as @key, in which there is no 'ix'\. Set keyColumns"):
        read(s2, name, mode="upsert", keyColumns="ix", columns="ix STRING, amount BIGINT")
