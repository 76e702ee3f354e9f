"""Topics of Kafka as messages, the files that copy them, and the verdict on a copy: without any server."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import OptionError
from penstock.operate.migrate import kafka_copy
from penstock.operate.migrate.kafka_copy import Copy, Placed, Record, copies, declaration, headers, pipeline, record
from penstock.operate.migrate.kafka_proof import Side, compare, sentence
from penstock.options import documents
from penstock.pipelines.load import load

NAMES = st.text("aN-: \r\n\u00e9\U0001f600", max_size=6)
RECORDS = st.builds(
    Record,
    st.none() | st.binary(max_size=6),
    st.none() | st.binary(max_size=6),
    st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=6)), max_size=3),
    st.integers(-1, 2**40),
)


@given(RECORDS, st.integers(0, 99), st.integers(0, 2**50))
@settings(max_examples=80, deadline=None)
def test_a_record_is_read_back_from_its_message_as_it_was(one: Record, partition: int, offset: int) -> None:
    pairs = headers("t", partition, offset, one.millis, one)
    assert not any(b"\r" in value or b"\n" in value for _, value in pairs)
    found = record("t", [("Nats-Msg-Id", b"t/1/2"), *pairs], one.value or b"")
    assert found == Placed(partition, offset, one)
    assert found.record.checksum() == one.checksum()


def test_a_value_that_looks_like_a_variable_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "hunter2")
    file = tmp_path / "t.toml"
    file.write_text(pipeline(copies(["t"])[0], "b:9092", "nats://a:4222", {"kafka.client.id": "x${MY_SECRET}"}))
    assert "hunter2" not in repr(load([file]))
    assert documents.read(file).values["source"]["properties"]["kafka.client.id"] == "x${MY_SECRET}"


def test_headers_that_a_server_would_obey_are_packed() -> None:
    one = Record(b"k", b"v", [("Nats-Rollup", b"all"), ("kafka-offset", b"7"), ("trace", b"a b"), ("x", b" y")], 1)
    names = [name for name, _ in headers("t", 0, 5, 1, one)]
    assert names == [
        "kafka-header", "kafka-header", "trace", "kafka-header", "kafka-topic", "kafka-partition", "kafka-offset",
        "kafka-timestamp", "kafka-key",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        [("kafka-topic", b"t")],
        [("kafka-topic", b"other"), ("kafka-partition", b"0"), ("kafka-offset", b"0")],
        [("kafka-topic", b"t"), ("kafka-partition", b"x"), ("kafka-offset", b"0")],
        [("kafka-topic", b"t"), ("kafka-partition", b"0"), ("kafka-offset", b"0"), ("kafka-key-base64", b"?")],
        [("kafka-topic", b"t"), ("kafka-partition", b"0"), ("kafka-offset", b"0"), ("kafka-header", b"?")],
    ],
)
def test_any_other_message_is_no_record(pairs: list[tuple[str, bytes]]) -> None:
    assert record("t", pairs, b"x") is None


def test_records_that_differ_in_anything_have_other_checksums() -> None:
    one = Record(b"k", b"v", [("h", b"x")], 5)
    others = [
        one._replace(key=None), one._replace(key=b""), one._replace(value=None), one._replace(value=b""),
        one._replace(headers=[]), one._replace(headers=[("h", None)]), one._replace(millis=6),
        one._replace(headers=[("h", b"x"), ("h", b"x")]),
    ]  # fmt: skip
    assert len({each.checksum() for each in [one, *others]}) == 9


def test_the_pipeline_file_passes_check_and_is_exactly_once(tmp_path: Path) -> None:
    for copy in (*copies(["orders", "odd..name"]), *copies(["a.b"], by_key=True, name="KEYED")):
        file = tmp_path / f"{copy.stream}.toml"
        file.write_text(pipeline(copy, "localhost:9092", "nats://127.0.0.1:4222"))
        (found,) = load([file])
        assert found.guarantee() == "exactly once"
        assert found.source.options["kafka.isolation.level"] == "read_committed"
        assert found.source.options["startingOffsets"] == "earliest"


def test_secrets_are_not_written_into_files() -> None:
    copy = copies(["orders"])[0]
    kafka = {"kafka.sasl.jaas.config": "password=hush"}
    said = pipeline(
        copy, "localhost:9092", "nats://a:4222", kafka, {"password": "hush", "passwordFile": "/x", "user": "u"}
    )
    assert "hush" not in said
    values = tomllib.loads(said)
    assert values["sinks"][0]["password"] == {"env": "NATS_PASSWORD"}
    assert values["sinks"][0]["passwordFile"] == "/x"
    assert values["source"]["properties"]["kafka.sasl.jaas.config"] == {"env": "KAFKA_SASL_JAAS_CONFIG"}


def test_each_topic_has_a_stream_and_subjects_of_its_own() -> None:
    assert copies(["orders", "shop.eu", "x..y"]) == [
        Copy("orders", "orders", "orders"),
        Copy("shop.eu", "shop_eu", "shop.eu"),
        Copy("x..y", "x__y", "x__y"),
    ]
    said = tomllib.loads(declaration(copies(["shop.eu"]), storage="memory", replicas=3, max_age="1d"))
    assert said["streams"]["shop_eu"]["subjects"] == ["shop.eu.*"]
    assert said["streams"]["shop_eu"]["num_replicas"] == 3
    with pytest.raises(OptionError, match=r"'a_b' and 'a\.b' would both be copied to 'a_b'"):
        copies(["a.b", "a_b"])
    with pytest.raises(OptionError, match="no topic of Kafka"):
        copies(["a b"])


@pytest.mark.parametrize(
    ("key", "subject"),
    [
        (b"eu-1", "t.eu-1"),
        (None, "t.~none"),
        (b"", "t.~"),
        (b"a.b", "t.~612e62"),
        (b"\xff", "t.~ff"),
        (b"x" * 201, "t.~sha256-"),
    ],
)
def test_a_key_is_a_token_of_a_subject(key: bytes | None, subject: str) -> None:
    found = kafka_copy.subject(Copy("t", "t", "t", by_key=True), 3, key)
    assert found.startswith(subject)
    assert found.count(".") == 1
    assert kafka_copy.subject(Copy("t", "t", "t"), 3, key) == "t.3"


# --- the verdict ------------------------------------------------------------------------------------------------------


def side(*offsets: int, other: int | None = None) -> Side:
    found = Side()
    for offset in offsets:
        found.add(offset, offset * 7 + (offset == other))
    return found


def test_gaps_in_the_offsets_of_kafka_are_no_fault() -> None:
    verdict = compare("t", 0, side(0, 3, 4, 9), side(0, 3, 4, 9), 12)
    assert verdict.holds
    assert (verdict.in_kafka, verdict.in_stream, verdict.no_longer_in_kafka) == (4, 4, 0)


def test_records_that_kafka_has_compacted_or_deleted_since_are_no_fault() -> None:
    verdict = compare("t", 0, side(5, 9), side(0, 1, 5, 7, 9), 10)
    assert verdict.holds
    assert verdict.no_longer_in_kafka == 3
    assert "3 more are in the stream, and no longer in Kafka" in sentence(verdict, "S")


def test_what_is_missing_twice_and_different_is_told_by_its_offset() -> None:
    verdict = compare("t", 2, side(0, 1, 2, 3, 4), side(0, 2, 2, 3, 4, other=3), 5)
    assert (verdict.missing_offsets, verdict.twice_offsets, verdict.different_offsets) == ((1,), (2,), (3,))
    assert not verdict.holds
    said = sentence(verdict, "S")
    assert "1 are missing (offsets 1); 1 are there twice (offsets 2); 1 differ (offsets 3)" in said


def test_records_behind_the_end_say_nothing_and_another_order_is_seen() -> None:
    assert compare("t", 0, side(0, 1), side(0, 1, 2, 2, 3), 2).holds
    assert not compare("t", 0, side(0, 1), side(1, 0), 2).in_order
    empty = compare("t", 0, Side(), Side(), 0)
    assert empty.holds
    assert compare("t", 0, side(0), Side(), 1).missing == 1
