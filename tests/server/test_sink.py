"""What the JetStream sink publishes, in every way it knows, and what it refuses."""

from typing import Any

import pyarrow as pa
import pytest
from sink_writes import HEADERS, ORIGIN, batch, batches, bodies, commit, count, stored, write

from nats_servers import Admin
from penstock.clients.jetstream import publish
from penstock.connectors.jetstream import JetStream
from penstock.errors import ConnectError, OptionError
from penstock.kit.contract import Origin
from penstock.testing.nats_server import NatsServer

pytestmark = pytest.mark.usefixtures("_new_ledger")

FLAGS = {"pipelined": {}, "atomic": {"allow_atomic": True}, "fast": {"allow_batched": True}}
all_modes = pytest.mark.parametrize("mode", FLAGS)


def made(admin: Admin, stream: str, mode: str = "pipelined", **config: Any) -> str:
    admin.create(stream, **FLAGS[mode], **config)
    return f"{stream}.x"


@all_modes
@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_rows_are_stored_in_order_with_a_receipt(
    admin: Admin, nats: NatsServer, stream: str, mode: str, delivery: str
) -> None:
    subject = made(admin, stream, mode)
    receipt = write(nats.url, batches(3500), subject=subject, publishMode=mode, delivery=delivery)
    assert bodies(admin, stream) == count(0, 3500)
    assert (receipt.rows, receipt.known, receipt.spans) == (3500, 0, {stream: (1, 3500)})
    assert receipt.origin == ORIGIN
    assert str(receipt) == f"partition 1 of batch 0 wrote 3,500 rows ({stream} 1 to 3500)"


@all_modes
def test_every_row_has_the_id_of_its_place(admin: Admin, nats: NatsServer, stream: str, mode: str) -> None:
    subject = made(admin, stream, mode)
    write(nats.url, batches(1500), subject=subject, publishMode=mode)
    ids = [headers["Nats-Msg-Id"].decode() for _, _, headers in stored(admin, stream)]
    assert ids == [f"0b9e4a2c/0/1/{row}" for row in range(1500)]


@pytest.mark.parametrize(
    ("mode", "storage", "way"),
    [
        ("pipelined", "file", "pipelined"),
        ("atomic", "memory", "atomic"),
        ("atomic", "file", "pipelined"),
        ("fast", "file", "fast"),
    ],
)
def test_auto_takes_the_best_way_that_the_stream_allows(
    admin: Admin, nats: NatsServer, stream: str, mode: str, storage: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []
    for name in FLAGS:
        original = getattr(publish, name)
        monkeypatch.setattr(publish, name, lambda *a, f=original, n=name: taken.append(n) or f(*a))
    write(nats.url, batches(50), subject=made(admin, stream, mode, storage=storage))
    assert taken == [way]


@pytest.mark.parametrize("mode", ["atomic", "fast"])
def test_a_way_that_the_stream_does_not_allow_is_refused(
    admin: Admin, nats: NatsServer, stream: str, mode: str
) -> None:
    words = rf"publishMode={mode} needs nats-server 2\.1. \(this is 2.*\) and allow_\w+ on stream {stream}\. Turn it on"
    subject = made(admin, stream)
    with pytest.raises(OptionError, match=words):
        write(nats.url, batches(5), subject=subject, publishMode=mode)
    given = {"servers": nats.url, "subject": subject, "publishMode": mode}
    sink: Any = JetStream.open_sink(JetStream.parse_sink(given), batch([]).schema)
    with pytest.raises(OptionError, match=words):
        sink.check()
    sink.close()


@all_modes
def test_headers_ids_and_bodies_of_every_kind_arrive_as_they_are(
    admin: Admin, nats: NatsServer, stream: str, mode: str
) -> None:
    subject = made(admin, stream, mode)
    values = [b"", b"\x00\xff\r\nMSG a 1 3\r\nabc\r\n", "grüße".encode(), b"last"]
    headers = pa.array(
        [None, [{"key": "A", "value": b"1"}, {"key": "A", "value": b""}], [], [{"key": "b", "value": None}]], HEADERS
    )
    ids = pa.array(["mine-1", None, "mine-3", None])
    write(nats.url, [batch(values, headers=headers, id=ids)], subject=subject, publishMode=mode)
    rows = stored(admin, stream)
    assert [body for _, body, _ in rows] == values
    assert [h["Nats-Msg-Id"] for _, _, h in rows] == [b"mine-1", b"0b9e4a2c/0/1/1", b"mine-3", b"0b9e4a2c/0/1/3"]
    assert [{k: v for k, v in h.items() if not k.startswith("Nats-")} for _, _, h in rows] == [
        {},
        {"A": b""},
        {},
        {"b": b""},
    ]


# What the server does for each, unless it is left out; and headers like them that only describe.
COMMANDS = {
    "Nats-Rollup": b"all",
    "nats-rollup": b"sub",
    "Nats-TTL": b"1h",
    "Nats-Msg-Id": b"1",
    "nats-expected-stream": b"other",
    "Nats-Expected-Last-Sequence": b"7",
    "Nats-Batch-Id": b"1",
    "Nats-Batch-Commit": b"1",
    "Nats-Required-Api-Level": b"99",
    "Nats-Schedule": b"@every 1s",
    "Nats-Schedule-Target": b"x",
    "Nats-Scheduler": b"x",
    "Nats-Schedule-Next": b"purge",
    "Nats-Incr": b"1",
    "Nats-Stream-Source": b"S 1 > >",
    "Nats-Trace-Dest": b"x",
    "Nats-Trace-Only": b"true",
}
DESCRIBE = {
    "Own": b"1",
    "KV-Operation": b"DEL",
    "Nats-Marker-Reason": b"MaxAge",
    "Nats-Subject": b"a",
    "Nats-TTLs": b"",
}


def as_headers(pairs: dict[str, bytes]) -> list[dict[str, Any]]:
    return [{"key": key, "value": value} for key, value in pairs.items()]


@all_modes
def test_headers_that_commanded_an_earlier_publish_are_left_out_and_those_that_describe_are_kept(
    admin: Admin, nats: NatsServer, stream: str, mode: str
) -> None:
    """A stream with roll-ups, times to live, schedules and conditions can be copied as it is."""
    flags = {"allow_rollup_hdrs": True, "allow_msg_ttl": True}
    subject = made(admin, stream, mode, **flags)
    admin.numbers(stream, 100)
    one_by_one = [as_headers({key: value} | DESCRIBE) for key, value in COMMANDS.items()]
    headers = pa.array([*one_by_one, as_headers(COMMANDS), None], HEADERS)
    write(nats.url, [batch(count(0, len(headers)), headers=headers)], subject=subject, publishMode=mode)
    found = stored(admin, stream)
    assert [body for _, body, _ in found[:100]] == count(0, 100), "a copied Nats-Rollup empties the stream"
    own = [{k: v for k, v in h.items() if not k.startswith(("Nats-Msg-Id", "Nats-Batch"))} for _, _, h in found[100:]]
    assert own == [DESCRIBE] * len(COMMANDS) + [{}, {}]


def test_headers_that_command_are_published_where_an_option_says_so(
    admin: Admin, nats: NatsServer, stream: str
) -> None:
    subject = made(admin, stream, "fast", allow_rollup_hdrs=True, allow_msg_ttl=True)
    admin.numbers(stream, 100)
    headers = [{"Nats-Rollup": b"all", "Nats-TTL": b"1h", "Nats-Msg-Id": b"1"}, {"Nats-Expected-Last-Sequence": b"101"}]
    rows = [batch([b"a", b"b"], headers=pa.array([as_headers(each) for each in headers], HEADERS))]
    write(nats.url, rows, subject=subject, commandHeaders="true")
    ids = [{"Nats-Msg-Id": b"0b9e4a2c/0/1/%d" % row} for row in range(2)]
    assert [h for _, _, h in stored(admin, stream)] == [
        {"Nats-Rollup": b"all", "Nats-TTL": b"1h"} | ids[0],
        headers[1] | ids[1],
    ]


def test_text_is_published_as_utf_8(admin: Admin, nats: NatsServer, stream: str) -> None:
    subject = made(admin, stream)
    write(nats.url, [pa.record_batch({"value": pa.array(["grüße", ""])})], subject=subject)
    assert bodies(admin, stream) == ["grüße".encode(), b""]


def test_a_subject_is_a_column_a_template_or_both(admin: Admin, nats: NatsServer, stream: str) -> None:
    admin.create(stream)
    regions = pa.array(["eu", "us"])
    own = pa.array([f"{stream}.own", None])
    write(nats.url, [batch([b"1", b"2"], subject=pa.array([f"{stream}.a", f"{stream}.b"]))], Origin("a", 0, 0))
    write(nats.url, [batch([b"3", b"4"], region=regions)], Origin("b", 0, 0), subject=f"{stream}.{{region}}.x")
    write(nats.url, [batch([b"5", b"6"], subject=own)], Origin("c", 0, 0), subject=f"{stream}.else")
    write(nats.url, [batch([b"7", b"8"], subject=regions)], Origin("d", 0, 0), subject=f"{stream}.copy.{{subject}}")
    assert [subject.removeprefix(stream) for subject, _, _ in stored(admin, stream)] == [
        ".a", ".b", ".eu.x", ".us.x", ".own", ".else", ".copy.eu", ".copy.us",
    ]  # fmt: skip


@all_modes
def test_one_task_writes_to_several_streams(admin: Admin, nats: NatsServer, stream: str, mode: str) -> None:
    admin.create(f"{stream}A", f"{stream}.a.>", **FLAGS[mode])
    admin.create(f"{stream}B", f"{stream}.b.>", **FLAGS[mode])
    subjects = pa.array([f"{stream}.{'ab'[i % 2]}.{i % 7}" for i in range(2000)])
    receipt = write(nats.url, [batch(count(0, 2000), subject=subjects)], publishMode=mode)
    assert bodies(admin, f"{stream}A") == [b"%d" % i for i in range(0, 2000, 2)]
    assert bodies(admin, f"{stream}B") == [b"%d" % i for i in range(1, 2000, 2)]
    assert receipt.spans == {f"{stream}A": (1, 1000), f"{stream}B": (1, 1000)}


@all_modes
def test_rows_behind_one_that_is_there_already_stay_behind_the_others(
    admin: Admin, nats: NatsServer, stream: str, mode: str
) -> None:
    """A batch with an id that is known is refused as a whole, and its rows follow one by one: before the next batch."""
    subject = made(admin, stream, mode)
    admin.publish([(subject, b"first", {"Nats-Msg-Id": "order-500"})])
    ids = pa.array([f"order-{i}" if i == 500 else None for i in range(3000)])
    receipt = write(nats.url, [batch(count(0, 3000), id=ids)], subject=subject, publishMode=mode)
    assert receipt.rows == 3000
    assert bodies(admin, stream) == [b"first", *count(0, 500), *count(501, 3000)]


def test_a_time_to_live_that_is_refused_names_the_column_and_the_way_out(
    admin: Admin, nats: NatsServer, stream: str
) -> None:
    subject = made(admin, stream)
    with pytest.raises(ConnectError, match=rf"column 'ttl' .* `nats stream edit {stream} --allow-msg-ttl`"):
        write(nats.url, [batch([b"a"], ttl=pa.array(["1h"]))], subject=subject)
    admin.delete(stream)
    made(admin, stream, allow_msg_ttl=True)
    for text in ("soon", "10ms"):
        with pytest.raises(
            ConnectError, match=r"error 10165\)\. The column 'ttl' .* must be whole seconds, at least 1"
        ):
            write(nats.url, [batch([b"a"], ttl=pa.array([text]))], subject=subject)
    for text in ("30s", "1h", "never"):
        write(nats.url, [batch([b"a"], ttl=pa.array([text]))], Origin(text, 0, 0), subject=subject)


def test_a_time_to_live_is_kept(admin: Admin, nats: NatsServer, stream: str) -> None:
    subject = made(admin, stream, allow_msg_ttl=True)
    write(nats.url, [batch([b"a", b"b"], ttl=pa.array(["1h", None]))], subject=subject)
    write(nats.url, [batch([b"c"], ttl=pa.array([7], pa.int64()))], Origin("b", 0, 0), subject=subject)
    assert [h.get("Nats-TTL") for _, _, h in stored(admin, stream)] == [b"1h", None, b"7"]


def test_an_expected_sequence_is_held(admin: Admin, nats: NatsServer, stream: str) -> None:
    subject = made(admin, stream, "fast")
    rows = [batch([b"a", b"b"], expectedLastSubjectSequence=pa.array([0, 1], pa.int64()))]
    write(nats.url, rows, subject=subject)
    wrong = [batch([b"c"], expectedLastSubjectSequence=pa.array([1], pa.int64()))]
    with pytest.raises(
        ConnectError, match=r"row 0 of partition 0 of batch 0 \(b'c' to .* wrong last sequence: 2.*Somebody"
    ):
        write(nats.url, wrong, Origin("b", 0, 0), subject=subject)
    assert bodies(admin, stream) == [b"a", b"b"]


def test_a_small_window_of_rows_in_flight_changes_nothing(admin: Admin, nats: NatsServer, stream: str) -> None:
    write(nats.url, batches(300), subject=made(admin, stream), maxInFlight="7")
    assert bodies(admin, stream) == count(0, 300)


def test_the_ledger_is_made_once_and_emptied_batch_by_batch(admin: Admin, nats: NatsServer, stream: str) -> None:
    subject, ledger = made(admin, stream), f"{stream}L"
    for number in range(4):
        origins = [Origin("q", number, partition) for partition in range(3)]
        commit(
            nats.url,
            [write(nats.url, batches(5), o, subject=subject, ledger=ledger) for o in origins],
            number,
            ledger=ledger,
        )
    left = sorted(subject for subject, _, _ in stored(admin, ledger))
    assert left == [f"{ledger}.q.3.done"]
    commit(
        nats.url, [write(nats.url, batches(5), Origin("w", 0, 0), subject=subject, ledger=ledger)], None, ledger=ledger
    )
    assert sorted(subject for subject, _, _ in stored(admin, ledger)) == left, "a single write leaves nothing"


def test_an_empty_partition_asks_nobody() -> None:
    receipt = write("nats://127.0.0.1:1", [batch([])], subject="x")
    assert receipt.rows == 0


BAD_ROWS = [
    ({"subject": pa.array(["{s}.a", None])}, r"row 1 of partition 1 of batch 0 has no subject \(null\)"),
    ({"subject": pa.array(["{s}.a", "{s}..b"])}, r"row 1 .* has the subject '\w+\.\.b', which has an empty token"),
    ({"subject": pa.array(["{s}.a", "{s}.a b"])}, r"row 1 .* which has a space"),
    ({"subject": pa.array(["{s}.*", "{s}.b"])}, r"row 0 .* which has a wildcard"),
    ({"headers": pa.array([None, [{"key": "a b", "value": b""}]], HEADERS)}, r"row 1 .* has a header named b'a b'"),
    ({"headers": pa.array([None, [{"key": "a", "value": b"x\r\ny"}]], HEADERS)}, r"row 1 .* has a line break"),
    ({"sequence": pa.array([1, 2], pa.int64())}, r"jetstream cannot write the column 'sequence'"),
]  # fmt: skip


@pytest.mark.parametrize(("columns", "words"), BAD_ROWS, ids=[words[:40] for _, words in BAD_ROWS])
def test_a_row_that_cannot_be_published_is_refused_before_anything_is(
    admin: Admin, nats: NatsServer, stream: str, columns: dict[str, pa.Array], words: str
) -> None:
    subject = made(admin, stream)
    given = {
        name: pa.array([s and s.format(s=stream) for s in c.to_pylist()]) if name == "subject" else c
        for name, c in columns.items()
    }
    with pytest.raises(OptionError, match=words):
        write(nats.url, [batch([b"a", b"b"], **given)], **({} if "subject" in columns else {"subject": subject}))
    assert bodies(admin, stream) == []


def test_a_null_value_is_refused(admin: Admin, nats: NatsServer, stream: str) -> None:
    with pytest.raises(OptionError, match=r"row 1 of partition 1 of batch 0 has no value \(null\)\. Write coalesce"):
        write(nats.url, [pa.record_batch({"value": pa.array(["a", None])})], subject=made(admin, stream))


def test_a_row_over_max_payload_is_refused_with_its_size(admin: Admin, nats: NatsServer, stream: str) -> None:
    subject = made(admin, stream)
    with pytest.raises(
        OptionError, match=r"row 1 .* has 1,048,6\d\d bytes, headers included, and the server takes 1,048,576"
    ):
        write(nats.url, [batch([b"a", b"x" * (1 << 20)])], subject=subject)
    write(nats.url, [batch([b"x" * ((1 << 20) - 200)])], subject=subject)
    assert len(bodies(admin, stream)) == 1


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ({"body": pa.array(["a"])}, {"subject": "a"}, "there is no column 'value' to write. There are: body"),
        ({"value": pa.array(["a"])}, {}, "rows have no subject: set the option 'subject', or add a column 'subject'"),
        ({"value": pa.array(["a"]), "x": pa.array([1])}, {"subject": "a"}, r"cannot write the column 'x': it writes"),
        ({"value": pa.array([1])}, {"subject": "a"}, "column 'value' must be STRING or BINARY, but is int64. Cast it"),
        ({"value": pa.array(["a"]), "id": pa.array([1])}, {"subject": "a"}, "column 'id' must be STRING, but is int64"),
        ({"value": pa.array(["a"]), "headers": pa.array(["a"])}, {"subject": "a"}, "must be ARRAY<STRUCT<"),
        ({"value": pa.array(["a"])}, {"subject": "a.{region}"}, "there is no column 'region'. There are: value"),
        ({"value": pa.array(["a"])}, {"subject": "a.{region"}, "braces must come in pairs"),
        ({"value": pa.array(["a"])}, {"subject": "a..b"}, "option 'subject' has 'a..b', which has an empty token"),
        ({"value": pa.array(["a"])}, {"subject": "a", "publishMod": "fast"}, "Did you mean 'publishMode'"),
        ({"value": pa.array(["a"])}, {"STREAM": "ORDERS"}, "set 'subject' to one that stream 'ORDERS' takes, or add"),
        ({"value": pa.array(["a"])}, {"subject": "a", "ledger": "a.b"}, "option 'ledger' must be a stream's name"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_before_any_task(
    columns: dict[str, pa.Array], options: dict[str, str], words: str
) -> None:
    with pytest.raises(OptionError, match=words):
        write("nats://127.0.0.1:1", [pa.record_batch(columns)], **options)


def test_a_subject_that_no_stream_takes_is_refused_with_the_nearest(
    admin: Admin, nats: NatsServer, stream: str
) -> None:
    made(admin, stream)
    with pytest.raises(OptionError, match=rf"no stream takes the subject '{stream}x\.y'.*'{stream}' takes {stream}\.>"):
        write(nats.url, batches(5), subject=f"{stream}x.y")


@all_modes
def test_a_full_stream_stops_the_task_and_says_what_was_written(
    admin: Admin, nats: NatsServer, stream: str, mode: str
) -> None:
    subject = made(admin, stream, mode, discard="new", max_msgs=2500)
    with pytest.raises(
        ConnectError, match=rf"row \d+ .* maximum messages exceeded .*Make room.*written to '{stream}' up to"
    ):
        write(nats.url, batches(4000), subject=subject, publishMode=mode)
    got = bodies(admin, stream)
    assert got == count(0, len(got))
    admin.calls.call(
        f"STREAM.UPDATE.{stream}",
        {"name": stream, "subjects": [f"{stream}.>"], "discard": "new", "allow_direct": True, **FLAGS[mode]},
    )
    assert write(nats.url, batches(4000), subject=subject).rows == 4000
    assert bodies(admin, stream) == count(0, 4000), "every row once, and in order"


def test_a_message_that_is_too_large_for_its_stream_is_refused_by_its_row(
    admin: Admin, nats: NatsServer, stream: str
) -> None:
    subject = made(admin, stream, max_msg_size=200)
    with pytest.raises(ConnectError, match=r"row 1 of partition 1 of batch 0 .* message size exceeds maximum allowed"):
        write(nats.url, [batch([b"a", b"x" * 300, b"c"])], subject=subject)


def test_a_sealed_stream_is_refused(admin: Admin, nats: NatsServer, stream: str) -> None:
    subject = made(admin, stream)
    config = admin.calls.call(f"STREAM.INFO.{stream}")["config"]
    admin.calls.call(f"STREAM.UPDATE.{stream}", config | {"sealed": True})
    with pytest.raises(ConnectError, match=r"row 0 .* sealed"):
        write(nats.url, batches(5), subject=subject)
