import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.arrow.types import TIMESTAMP
from penstock.clients.jetstream import api
from penstock.clients.jetstream.api import StreamInfo, micros
from penstock.clients.jetstream.columns import ack_columns, direct_columns
from penstock.clients.jetstream.engines import direct_rows
from penstock.clients.nats.headers import headers_column
from penstock.clients.nats.wire import Messages, scan
from penstock.errors import ProtocolError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rfc3339(nanoseconds: int, digits: int | None = None) -> str:
    """As Go prints a time in UTC: without trailing zeros, or with exactly so many digits."""
    seconds, fraction = divmod(nanoseconds, 10**9)
    text = f"{fraction:09}"
    text = text.rstrip("0") if digits is None else text[:digits]
    return (EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S") + (f".{text}" if text else "") + "Z"


def pulled(*messages: tuple[str, str]) -> Messages:
    """Messages of a consumer, from (subject, reply)."""
    buffer = b"".join(b"MSG %s 3 %s 2\r\nhi\r\n" % (s.encode(), r.encode()) for s, r in messages)
    found = scan(buffer, len(buffer), sid=3).messages
    assert found is not None
    return found


# Metadata in ack subjects

NS = 1_763_208_000_123_456_789


@pytest.mark.parametrize("front", ["$JS.ACK", "$JS.ACK._.aBcD12", "$JS.ACK.hub.aBcD12"])
@pytest.mark.parametrize(
    ("subject", "sequence", "nanoseconds"),
    [
        ("orders", 1, NS),
        ("orders.eu.new", 12345, NS),
        ("a.b.c.d.e.f.g.h", 9_007_199_254_740_993, NS + 999),
        ("1.2.3", 42, 1_000_000_000_000_000_000),
        ("ünï.cödé", 7, 9_223_372_036_854_775_807),
    ],
)
def test_the_reply_subject_tells_sequence_and_time(front: str, subject: str, sequence: int, nanoseconds: int) -> None:
    reply = f"{front}.ORDERS.c0nsumer.1.{sequence}.77.{nanoseconds}.1000"
    subjects, sequences, times = ack_columns(pulled((subject, reply)))
    assert subjects.to_pylist() == [subject]
    assert sequences.to_pylist() == [sequence]
    assert times.cast("int64").to_pylist() == [nanoseconds // 1000]
    assert times.type == TIMESTAMP


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(["a", "orders", "7", "$JS"]), min_size=1, max_size=5).map(".".join),
            st.integers(1, 2**62),
            st.integers(10**18, 2**63 - 1),
            st.booleans(),
            st.integers(0, 10**12),
        ),
        min_size=1,
    )
)
def test_both_kinds_of_reply_subjects_in_one_buffer(rows: list[tuple[str, int, int, bool, int]]) -> None:
    # During an upgrade the servers of a cluster speak differently.
    messages = [
        (
            subject,
            f"$JS.ACK{'.hub.hash' if long else ''}.S-1.cons.{pending % 9 + 1}.{sequence}.{pending}.{ns}.{pending}",
        )
        for subject, sequence, ns, long, pending in rows
    ]
    subjects, sequences, times = ack_columns(pulled(*messages))
    assert subjects.to_pylist() == [row[0] for row in rows]
    assert sequences.to_pylist() == [row[1] for row in rows]
    assert times.cast("int64").to_pylist() == [row[2] // 1000 for row in rows]


# Metadata in the headers of DIRECT.GET


def answered(subject: str, sequence: int, time: str, own: bytes = b"", stream: str = "ORDERS") -> bytes:
    """The header block of a batched DIRECT.GET, as the server writes it: its own fields in the place of the last two
    bytes of the publisher's block, whatever they are.
    """
    return (
        (own[:-2] if len(own) > 2 else b"NATS/1.0\r\n")
        + f"Nats-Stream: {stream}\r\nNats-Subject: {subject}\r\nNats-Sequence: {sequence}\r\n"
        f"Nats-Time-Stamp: {time}\r\nNats-Num-Pending: 5\r\nNats-Last-Sequence: {sequence - 1}\r\n\r\n".encode()
    )


def direct(*blocks: bytes) -> Messages:
    buffer = b"".join(b"HMSG _INBOX.x.3.1 3 %d %d\r\n%shi\r\n" % (len(b), len(b) + 2, b) for b in blocks)
    found = scan(buffer, len(buffer), sid=3, kind="direct").messages
    assert found is not None
    assert len(found) == len(blocks)
    return found


OWN = [
    b"",
    b"NATS/1.0\r\nTrace: 1\r\n\r\n",
    b"NATS/1.0\r\nTrace: 1\r\nTrace: 2\r\nEmpty:\r\nA: b: c\r\n\r\n",
    # A message that was itself read from another stream and stored with what the server had added.
    b"NATS/1.0\r\nNats-Stream: OLD\r\nNats-Subject: old\r\nNats-Sequence: 9\r\n"
    b"Nats-Time-Stamp: 2020-01-01T00:00:00Z\r\n\r\n",
]


def test_the_headers_of_direct_get_tell_subject_sequence_and_time() -> None:
    blocks = [answered(f"orders.{i}", 10 + i, rfc3339(NS + i), own) for i, own in enumerate(OWN)]
    subjects, sequences, times, own_blocks, mirror = direct_columns(direct(*blocks).blocks, "ORDERS")
    assert mirror == ""
    assert subjects.to_pylist() == [f"orders.{i}" for i in range(4)]
    assert sequences.to_pylist() == [10, 11, 12, 13]
    assert times.cast("int64").to_pylist() == [NS // 1000] * 4
    assert times.type == TIMESTAMP
    headers = headers_column(own_blocks(), 4).to_pylist()
    assert headers[0] is None, "only the publisher's own are shown"
    assert headers[1] == [{"key": "Trace", "value": b"1"}]
    assert [h["key"] for h in headers[2]] == ["Trace", "Trace", "Empty", "A"]
    assert [h["value"] for h in headers[2]] == [b"1", b"2", b"", b"b: c"]
    assert [h["value"] for h in headers[3]] == [b"OLD", b"old", b"9", b"2020-01-01T00:00:00Z"]


@pytest.mark.parametrize("digits", range(10))
def test_a_time_has_up_to_nine_digits_of_a_second(digits: int) -> None:
    moment = rfc3339(NS, digits)
    kept = NS // 10 ** (9 - digits) * 10 ** (9 - digits)
    times = direct_columns(direct(answered("s", 1, moment)).blocks, "ORDERS").timestamp
    assert times.cast("int64").to_pylist() == [kept // 1000]
    assert micros(moment) == kept // 1000


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1))
def test_times_of_all_lengths_in_one_buffer(moments: list[int]) -> None:
    messages = direct(*(answered("s", i + 1, rfc3339(ns)) for i, ns in enumerate(moments)))
    times = direct_columns(messages.blocks, "ORDERS").timestamp
    assert times.cast("int64").to_pylist() == [ns // 1000 for ns in moments]
    assert [micros(rfc3339(ns)) for ns in moments] == [ns // 1000 for ns in moments]


def test_both_ways_to_read_tell_the_same_time() -> None:
    _, _, by_ack = ack_columns(pulled(("s", f"$JS.ACK.S.c.1.1.1.{NS}.0")))
    by_header = direct_columns(direct(answered("s", 1, rfc3339(NS))).blocks, "ORDERS").timestamp
    assert by_ack.to_pylist() == by_header.to_pylist()


# What publishers may have left of their block, and whether it has its end.
LINES = st.sampled_from([b"A: 1", b"A:", b": 1", b"A", b"", b"\r", b"NATS/1.0", b"Nats-Stream: ORDERS", b"x" * 30])
PUBLISHED = st.builds(
    lambda lines, end, ends: end.join(lines) + ends,
    st.lists(LINES, max_size=4),
    st.sampled_from([b"\r\n", b"\n"]),
    st.sampled_from([b"\r\n\r\n", b"\r\n", b"", b"\n", b"\n\n", b"\r", b"ab"]),
)


@given(st.lists(PUBLISHED | st.sampled_from(OWN), min_size=1))
def test_both_ways_to_read_give_the_same_headers_whatever_was_published(published: list[bytes]) -> None:
    frames = (b"HMSG s 3 $JS.ACK.S.c.1.1.1.%d.0 %d %d\r\n%shi\r\n" % (NS, len(p), len(p) + 2, p) for p in published)
    buffer = b"".join(frames)
    pulled_ = scan(buffer, len(buffer), sid=3).messages
    assert pulled_ is not None
    assert len(pulled_) == len(published)
    messages = direct(*(answered("s", i + 1, rfc3339(NS), own) for i, own in enumerate(published)))
    rows, mirror, end = direct_rows(messages, "ORDERS")
    assert rows is not None
    assert (mirror, end) == ("", None)
    assert rows.sequence.to_pylist() == list(range(1, len(published) + 1))
    assert rows.subject.to_pylist() == ["s"] * len(published)
    assert rows.headers().to_pylist() == headers_column(pulled_.blocks, len(published)).to_pylist()


@pytest.mark.parametrize("before", [0, 1, 3])
def test_the_status_behind_the_last_message_is_no_message(before: int) -> None:
    status = b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 3\r\n\r\n"
    # A status line that somebody published is none of the server's.
    blocks = [answered("s", i + 1, rfc3339(NS), b"NATS/1.0 503\r\n\r\n") for i in range(before)]
    rows, mirror, end = direct_rows(direct(*blocks, status), "ORDERS")
    assert (mirror, end) == ("", status)
    assert (0 if rows is None else len(rows.sequence)) == before
    if before:
        assert direct_rows(direct(*blocks), "ORDERS").status_block is None


def test_another_stream_that_answered_is_named() -> None:
    blocks = [answered("s", 1, rfc3339(NS)), answered("s", 2, rfc3339(NS), stream="MY-ORDERS")]
    assert direct_rows(direct(*blocks), "ORDERS").mirror == "MY-ORDERS"
    assert direct_rows(direct(*blocks), "RS").mirror == "ORDERS"


@pytest.mark.parametrize(
    "block",
    [
        b"NATS/1.0\r\n\r\n",
        answered("s", 1, rfc3339(NS)).replace(b"Nats-Subject: s\r\n", b""),
        answered("s", 1, rfc3339(NS)).replace(b"Nats-Subject", b"Nats"),
        answered("s", 1, rfc3339(NS)).replace(b"Nats-Sequence: 1", b"Nats-Sequence: one"),
        answered("s", 1, "yesterday"),
        b"\r\n" * 7,
    ],
)
def test_a_message_that_does_not_tell_which_it_is_is_refused(block: bytes) -> None:
    whole = answered("s", 1, rfc3339(NS))
    with pytest.raises(ProtocolError):
        direct_rows(direct(whole, block, whole), "ORDERS")


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("r", "to be answered on b'r', which is no ack subject"),
        ("a.b.c", "to be answered on b'a.b.c', which is no ack subject"),
        (f"$JS.ACK.S.c.1.one.1.{NS}.0", "a sequence in an ack subject that is none: .*'one'"),
        ("$JS.ACK.S.c.1.1.1.12.0", "lengths do not fit"),
    ],
)
@pytest.mark.parametrize("subject", ["s", "1.2.3.4.5.6.7"])
def test_a_reply_subject_that_tells_nothing_is_refused(subject: str, reply: str, why: str) -> None:
    good = ("s", f"$JS.ACK.S.c.1.1.1.{NS}.0")
    for messages in ([(subject, reply)], [good, (subject, reply)], [(subject, reply), good]):
        with pytest.raises(ProtocolError, match=why):
            ack_columns(pulled(*messages))


# STREAM.INFO

REPLY: dict[str, Any] = {
    "type": "io.nats.jetstream.api.v1.stream_info_response",
    "config": {
        "name": "ORDERS", "subjects": ["orders.>"], "retention": "limits", "max_consumers": -1, "max_msgs": -1,
        "max_msgs_per_subject": -1, "max_bytes": -1, "max_age": 0, "storage": "file", "num_replicas": 1,
        "deny_delete": False, "deny_purge": False, "allow_direct": True, "mirror_direct": False,
    },
    "created": "2026-11-15T12:00:00.123456789Z",
    "state": {
        "messages": 90, "bytes": 9000, "first_seq": 11, "first_ts": "2026-11-15T12:00:00Z", "last_seq": 110,
        "last_ts": "2026-11-15T12:34:56.789012345Z", "num_subjects": 3, "num_deleted": 10, "consumer_count": 0,
    },
}  # fmt: skip


def info(config: dict[str, Any] | None = None, state: dict[str, Any] | None = None) -> StreamInfo:
    return StreamInfo.of(REPLY | {"config": REPLY["config"] | (config or {}), "state": REPLY["state"] | (state or {})})


def test_what_stream_info_tells() -> None:
    assert info() == StreamInfo(
        name="ORDERS",
        created="2026-11-15T12:00:00.123456789Z",
        subjects=("orders.>",),
        derived=False,
        takes=True,
        retention="limits",
        allow_direct=True,
        deny_purge=False,
        compacts=False,
        first=11,
        last=110,
        messages=90,
        size=9000,
        first_time=1_794_744_000_000_000,
        last_time=1_794_746_096_789_012,
        duplicate_window=0.0,
        replicas=1,
        in_memory=False,
        allow_atomic=False,
        allow_batched=False,
        one_per_subject=False,
        max_age=0.0,
        allow_ttl=False,
        counts=False,
        leader="",
        leader_since="",
        most_idle=float("inf"),
    )


def test_who_leads_a_stream_is_told_as_far_as_the_server_says() -> None:
    for told in ({"leader": "n1"}, {"leader": "n1", "leader_since": "2026-11-15T12:00:00Z"}):
        found = StreamInfo.of(REPLY | {"cluster": told})
        assert (found.leader, found.leader_since) == ("n1", told.get("leader_since", ""))


def test_an_empty_stream_starts_at_one() -> None:
    # One that never had a message says 0 and 0, and a time that no timestamp of nanoseconds can hold.
    empty = {"messages": 0, "bytes": 0, "first_seq": 0, "last_seq": 0, "last_ts": "0001-01-01T00:00:00Z"}
    found = info(state=empty)
    assert (found.first, found.last, found.messages) == (1, 0, 0)
    assert found.last_time < 0


def test_a_purged_stream_starts_behind_its_last_message() -> None:
    found = info(state={"messages": 0, "bytes": 0, "first_seq": 111, "last_seq": 110})
    assert (found.first, found.last) == (111, 110)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, False),
        ({"mirror": {"name": "OTHER"}}, True),
        ({"sources": [{"name": "OTHER"}]}, True),
        ({"subject_transform": {"src": "a.>", "dest": "b.>"}}, True),
        ({"mirror": None, "sources": []}, False),
    ],
)
def test_a_stream_fed_by_others_may_hold_subjects_it_does_not_list(config: dict[str, Any], expected: bool) -> None:
    assert info(config).derived is expected


def test_fields_that_older_servers_leave_out_have_their_defaults() -> None:
    config = {"name": "MIRROR", "mirror": {"name": "X"}}
    found = StreamInfo.of(REPLY | {"config": config})
    assert (found.subjects, found.retention, found.allow_direct, found.deny_purge) == ((), "limits", False, False)
    assert not found.compacts


@pytest.mark.parametrize(
    "wrong",
    [
        {"config": None},
        {"state": []},
        {"created": 5},
        {"config": REPLY["config"] | {"subjects": "orders.>"}},
        {"config": REPLY["config"] | {"subjects": [1]}},
        {"state": REPLY["state"] | {"last_seq": "110"}},
        {"state": REPLY["state"] | {"last_seq": 2**64}},
        {"state": REPLY["state"] | {"last_ts": "yesterday"}},
        {"state": REPLY["state"] | {"last_ts": "2026-11-15T12:34:56"}},
        {"state": {}},
    ],
)
def test_an_answer_that_is_none_is_refused_with_what_it_says(wrong: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match=r"an answer has .* for '\w+'|which is no time"):
        StreamInfo.of(REPLY | wrong)


# Requests. Servers from 2.12 on are strict unless told otherwise: they refuse a request with a field they do not know.

CONSUMER_CONFIG = {
    "durable_name", "name", "description", "deliver_policy", "opt_start_seq", "opt_start_time", "ack_policy",
    "ack_wait", "max_deliver", "backoff", "filter_subject", "filter_subjects", "replay_policy", "rate_limit_bps",
    "sample_freq", "max_waiting", "max_ack_pending", "flow_control", "headers_only", "max_batch", "max_expires",
    "max_bytes", "deliver_subject", "deliver_group", "idle_heartbeat", "inactive_threshold", "num_replicas",
    "mem_storage", "metadata", "pause_until", "priority_groups", "priority_policy", "priority_timeout",
}  # fmt: skip
PULL = {
    "expires",
    "batch",
    "max_bytes",
    "no_wait",
    "idle_heartbeat",
    "group",
    "min_pending",
    "min_ack_pending",
    "id",
    "priority",
}
GET = {
    "seq", "last_by_subj", "next_by_subj", "batch", "max_bytes", "start_time", "multi_last", "up_to_seq", "up_to_time",
    "no_hdr",
}  # fmt: skip


@pytest.mark.parametrize("filters", [[], ["a.>"], ["a.>", "b.*"]])
def test_requests_for_consumers_have_only_fields_that_the_server_knows(filters: list[str]) -> None:
    for body in (
        api.reader(17, filters, "S"),
        api.consumer("S", api.follower("spark", 17, filters)),
    ):
        asked = json.loads(body)
        assert asked.keys() == {"stream_name", "config"}
        assert asked["stream_name"] == "S"
        assert asked["config"].keys() <= CONSUMER_CONFIG
        assert asked["config"]["opt_start_seq"] == 17
        assert asked["config"]["deliver_policy"] == "by_start_sequence"
        assert {k: v for k, v in asked["config"].items() if k.startswith("filter")} == (
            {} if not filters else {"filter_subject": "a.>"} if len(filters) == 1 else {"filter_subjects": filters}
        )


def test_a_reader_leaves_nothing_behind() -> None:
    config = json.loads(api.reader(17, [], "S"))["config"]
    assert config["ack_policy"] == "none"
    assert config["mem_storage"] is True
    assert config["num_replicas"] == 1
    assert config["inactive_threshold"] > 0, "it goes away by itself"
    assert "durable_name" not in config


def test_a_follower_keeps_messages_and_begins_nowhere_in_particular_on_a_work_queue() -> None:
    assert api.follower("spark", 5, [])["ack_policy"] == "explicit"
    assert api.follower("spark", None, []).keys() == {"durable_name", "description", "ack_policy"}


def test_a_part_of_a_work_queue_has_a_reader_of_its_own() -> None:
    names = [api.queue_reader(filters) for filters in ([], ["a"], ["b"], ["a", "b"], ["b", "a"])]
    assert names[0] == "penstock"
    assert len(set(names)) == 4
    assert names[3] == names[4]
    assert all(re.fullmatch(r"penstock(-[0-9a-f]{8})?", name) for name in names)


def test_a_start_before_the_first_message_is_the_first_message() -> None:
    # The server refuses a start sequence of 0.
    assert json.loads(api.reader(0, [], "S"))["config"]["opt_start_seq"] == 1
    assert api.follower("spark", 0, [])["opt_start_seq"] == 1
    assert json.loads(api.get(0, 10, 1000, []))["seq"] == 1


def test_pulls_have_only_fields_that_the_server_knows() -> None:
    asked = json.loads(api.pull(500, 1 << 20))
    assert asked.keys() <= PULL
    assert asked == {"batch": 500, "max_bytes": 1 << 20, "no_wait": True}


@pytest.mark.parametrize(("filters", "expected"), [([], None), (["a.>"], "a.>"), (["a.>", "b.>"], None)])
def test_direct_gets_have_only_fields_that_the_server_knows(filters: list[str], expected: str | None) -> None:
    asked = json.loads(api.get(17, 500, 1 << 20, filters))
    assert asked.keys() <= GET
    assert (asked["seq"], asked["batch"], asked["max_bytes"]) == (17, 500, 1 << 20)
    assert asked.get("next_by_subj") == expected
