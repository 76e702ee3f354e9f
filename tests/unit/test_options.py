import json
import logging
import pickle
import re
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from penstock.clients.nats.dial import Address, address
from penstock.connectors import FORMATS, connector
from penstock.connectors.iggy import Iggy
from penstock.connectors.jetstream import JetStream
from penstock.connectors.jetstream.options import JetStreamOptions
from penstock.connectors.nats import CoreNats
from penstock.connectors.s2 import S2Streams
from penstock.errors import OptionError
from penstock.options import Bytes, Options, Seconds, alias, json_schema, option, secrets, shown, table
from penstock.options.types import duration, size

NAMES = [
    "servers", "stream", "streamPattern", "discoveryInterval", "subjects", "startingOffsets", "startingTimestamp",
    "endingOffsets", "endingTimestamp", "maxRecords", "maxRecordsPerTrigger", "maxBytesPerTrigger",
    "minRecordsPerTrigger", "maxTriggerDelay", "minPartitions", "maxRecordsPerPartition", "failOnDataLoss",
    "includeHeaders", "progressConsumer", "readEngine", "user", "password", "token", "nkeySeed", "credentials",
    "userFile", "passwordFile", "tokenFile", "nkeySeedFile", "credentialsFile", "tls", "tlsCa", "tlsCert", "tlsKey",
    "tlsHandshakeFirst", "domain", "apiPrefix", "inboxPrefix", "connectTimeout", "requestTimeout", "connectionName",
]  # fmt: skip


def parse(**given_options: Any) -> JetStreamOptions:
    return JetStreamOptions.parse("jetstream", {"stream": "ORDERS", **given_options})


def refusal(**given_options: Any) -> str:
    with pytest.raises(OptionError) as caught:
        parse(**given_options)
    return str(caught.value)


# Names


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    assert refusal(startingOfsets="earliest") == (
        "unknown option 'startingOfsets' for jetstream. Did you mean 'startingOffsets'?"
    )


def test_the_nearest_name_is_found_whatever_the_case() -> None:
    # Spark lower-cases keys on some of their ways.
    assert refusal(STARTINGOFSETS="earliest") == (
        "unknown option 'STARTINGOFSETS' for jetstream. Did you mean 'startingOffsets'?"
    )


def test_an_option_like_no_other_is_refused_with_all_names() -> None:
    message = refusal(xyzzy="1")
    assert message.startswith("unknown option 'xyzzy' for jetstream. It takes: ack, apiPrefix, ")
    assert message.endswith(".")
    assert all(f"{name}" in message for name in NAMES)


@pytest.mark.parametrize(
    ("connector", "name"),
    [(JetStream, "publishMode"), (CoreNats, "commandHeaders"), (S2Streams, "ensureStream"), (Iggy, "createTopic")],
)
def test_an_option_of_the_sink_is_told_so_to_a_reader(connector: Any, name: str) -> None:
    for spelt in (name, name.lower()):  # Spark lower-cases keys on some of their ways
        with pytest.raises(OptionError) as caught:
            connector.parse({spelt: "x"})
        assert str(caught.value) == (
            f"option '{name}' is for the sink of {connector.format}, and this is a read. Leave it out "
            "here, and give it to write or writeStream."
        )


@pytest.mark.parametrize("connector", [JetStream, CoreNats, S2Streams, Iggy])
def test_an_option_of_the_source_is_told_so_to_a_writer(connector: Any) -> None:
    with pytest.raises(OptionError) as caught:
        connector.parse_sink({"startingoffsets": "earliest"})
    assert str(caught.value) == (
        f"option 'startingOffsets' is for the source of {connector.format}, and this is a write. Leave it "
        "out here, and give it to spark.read or spark.readStream."
    )


@pytest.mark.parametrize("connector", [JetStream, CoreNats])
def test_the_subject_of_a_sink_and_the_subjects_of_a_source_are_told_apart(connector: Any) -> None:
    with pytest.raises(OptionError, match=r"is for the sink .* To read, the option is 'subjects'\.$"):
        connector.parse({"subject": "a.>"})
    with pytest.raises(OptionError, match=r"is for the source .* To write, the option is 'subject'\.$"):
        connector.parse_sink({"subjects": "a.b"})


def test_a_stream_to_write_to_jetstream_has_an_answer_of_its_own() -> None:
    with pytest.raises(OptionError, match=r"A row is written to a subject"):
        JetStream.parse_sink({"stream": "ORDERS"})


def test_keys_are_matched_whatever_their_case() -> None:
    options = JetStreamOptions.parse(
        "jetstream", {"STREAM": "A", "maxrecordspertrigger": "5", "FailOnDataLoss": "false"}
    )
    assert (options.stream, options.max_records_per_trigger, options.fail_on_data_loss) == (("A",), 5, False)


def test_what_spark_adds_is_ignored_and_nothing_else() -> None:
    given_options = {"stream": "A", "checkpointlocation": "/tmp/x"}
    assert JetStreamOptions.parse("jetstream", given_options, ignore=["checkpointLocation"]).stream == ("A",)
    with pytest.raises(OptionError, match="unknown option 'checkpointlocation'"):
        JetStreamOptions.parse("jetstream", given_options)


@pytest.mark.parametrize("name", NAMES)
def test_every_promised_option_exists(name: str) -> None:
    assert name in {alias(field) for field in JetStreamOptions.model_fields}


def test_every_option_has_its_documentation() -> None:
    rows = table(JetStreamOptions)
    assert [name for name, _, _ in rows] == [shown(JetStreamOptions, field) for field in JetStreamOptions.model_fields]
    assert "Outside of Spark also `nkeySeed`." in {name: doc for name, _, doc in rows}["nkeySecret"]
    assert [name for name, _, doc in rows if len(doc.strip()) < 5 or not doc.rstrip("`.").strip()] == []
    assert len(rows) >= len(NAMES)


def test_the_table_shows_defaults_as_they_would_be_written() -> None:
    defaults = {name: default for name, default, _ in table(JetStreamOptions)}
    assert defaults["maxTriggerDelay"] == "15m"
    assert defaults["discoveryInterval"] == "10s"
    assert defaults["servers"] == "nats://127.0.0.1:4222"
    assert defaults["failOnDataLoss"] == "true"
    assert defaults["tls"] == "false"
    assert defaults["maxRecordsPerPartition"] == "100000"
    assert defaults["password"] == ""
    assert defaults["subjects"] == ""
    # What the table says must be what the option takes.
    shown = {name: default for name, default in defaults.items() if default}
    parsed = JetStreamOptions.parse("jetstream", {"stream": "S", **shown})
    assert all(
        getattr(parsed, field) == info.default
        for field, info in JetStreamOptions.model_fields.items()
        if alias(field) in shown
    )


class Sample(Options):
    topic: str = option(doc="What to read.", example="orders")
    limit: int = option(7, doc="How much.")


def test_a_required_option_is_missed_with_its_meaning() -> None:
    with pytest.raises(OptionError, match=r"^sample needs the option 'topic'\. What to read\. Example: `orders`\.$"):
        Sample.parse("sample", {"limit": "3"})
    assert table(Sample) == [("topic", "required", "What to read. Example: `orders`."), ("limit", "7", "How much.")]


# Values


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("10s", 10), ("1.5s", 1.5), ("15m", 900), ("2h", 7200), ("1d", 86400), (" 3 s ", 3)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse(requestTimeout=text).request_timeout == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "10", "s", "10 parsecs", "-5s", "1e3s", "5S"])
def test_no_durations(text: str) -> None:
    assert refusal(requestTimeout=text) == (
        f"option 'requestTimeout' must be a duration such as 500ms, 10s or 15m, but is '{text}'"
    )


def test_a_duration_of_nothing_is_refused() -> None:
    assert refusal(requestTimeout="0s") == "option 'requestTimeout' must be greater than 0, but is '0s'"


@pytest.mark.parametrize(
    ("text", "size"),
    [("65536", 65536), ("1b", 1), ("512kb", 512 << 10), ("512K", 512 << 10), ("64mb", 64 << 20), ("64 MB", 64 << 20),
     ("2g", 2 << 30), ("2GB", 2 << 30)],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert parse(maxBytesPerTrigger=text).max_bytes_per_trigger == size


@pytest.mark.parametrize("text", ["", "mb", "1.5mb", "-1", "5tb", "5 m b"])
def test_no_sizes(text: str) -> None:
    assert refusal(maxBytesPerTrigger=text) == (
        f"option 'maxBytesPerTrigger' must be a size such as 65536, 512kb or 64mb, but is '{text}'"
    )


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("0", 0),
        ("1763208000123", 1_763_208_000_123_000),
        ("2025-11-15T12:00:00Z", 1_763_208_000_000_000),
        ("2025-11-15T12:00:00.123456Z", 1_763_208_000_123_456),
        ("2025-11-15T13:00:00+01:00", 1_763_208_000_000_000),
        ("2025-11-15 12:00:00+00:00", 1_763_208_000_000_000),
    ],
)
def test_timestamps(text: str, micros: int) -> None:
    assert parse(startingTimestamp=text).starting_timestamp == micros
    assert parse(endingTimestamp=text).ending_timestamp == micros


@pytest.mark.parametrize("text", ["yesterday", "", "2026-13-01T00:00:00Z", "12.5", "-5"])
def test_no_timestamps(text: str) -> None:
    assert refusal(startingTimestamp=text) == (
        "option 'startingTimestamp' must be milliseconds since 1970 or a time such as 2026-11-15T12:00:00Z, "
        f"but is '{text}'"
    )


@pytest.mark.parametrize("text", ["2026-11-15T12:00:00", "2026-11-15"])
def test_a_timestamp_says_its_time_zone(text: str) -> None:
    assert refusal(startingTimestamp=text) == (
        f"option 'startingTimestamp' must say its time zone, such as 2026-11-15T12:00:00Z, but is '{text}'"
    )


@pytest.mark.parametrize(
    ("text", "parts"),
    [("A", ("A",)), ("A,B", ("A", "B")), (" A , B ,", ("A", "B")), (",,A,,", ("A",))],
)
def test_comma_lists(text: str, parts: tuple[str, ...]) -> None:
    assert parse(stream=text).stream == parts


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("false", False), ("TRUE", True), ("False", False), ("1", True), ("0", False)],
)
def test_booleans(text: str, value: bool) -> None:
    assert parse(failOnDataLoss=text).fail_on_data_loss is value


def test_no_booleans() -> None:
    assert refusal(failOnDataLoss="maybe") == "option 'failOnDataLoss' must be true or false, but is 'maybe'"


@pytest.mark.parametrize("text", ["ten", "", "1.5", "1e6", "0x10"])
def test_no_whole_numbers(text: str) -> None:
    assert refusal(maxRecords=text) == f"option 'maxRecords' must be a whole number, but is '{text}'"


@pytest.mark.parametrize("text", ["0", "-5"])
def test_counts_are_positive(text: str) -> None:
    assert refusal(maxRecords=text) == f"option 'maxRecords' must be greater than 0, but is '{text}'"


@given(st.integers(1, 10**15))
def test_whole_numbers(number: int) -> None:
    assert parse(maxRecords=str(number)).max_records == number


def test_positions_are_words_or_json() -> None:
    assert parse(startingOffsets=" Earliest ").starting_offsets == "earliest"
    assert parse(startingOffsets="latest").starting_offsets == "latest"
    assert parse(startingOffsets=' {"ORDERS": 17, "B": 1}').starting_offsets == {"ORDERS": 17, "B": 1}
    assert parse(endingOffsets="latest").ending_offsets == "latest"
    assert parse(endingOffsets='{"ORDERS": 17}').ending_offsets == {"ORDERS": 17}


@pytest.mark.parametrize(
    "text", ['{"ORDERS": -1}', '{"ORDERS": 1.5}', '{"ORDERS": "1"}', '{"ORDERS": true}', '{"ORDERS']
)
def test_no_positions(text: str) -> None:
    assert refusal(startingOffsets=text) == (
        "option 'startingOffsets' must be JSON from names to whole numbers, such as "
        f'{{"ORDERS": 17}}, but is {text!r}'
    )


def test_a_stream_has_no_message_zero() -> None:
    expected = "'startingOffsets' has a 0, but the messages of a stream are numbered from 1"
    assert refusal(startingOffsets='{"ORDERS": 0}') == f"jetstream: {expected}"


def test_no_words_for_positions() -> None:
    assert refusal(startingOffsets="newest") == (
        "jetstream: startingOffsets must be earliest, latest or JSON, but is 'newest'"
    )
    assert refusal(endingOffsets="earliest") == "jetstream: endingOffsets must be latest or JSON, but is 'earliest'"


def test_one_of_a_few_words() -> None:
    assert refusal(readEngine="fast") == "option 'readEngine' must be 'auto', 'consumer' or 'direct', but is 'fast'"


# What belongs together


def test_something_must_be_read() -> None:
    with pytest.raises(
        OptionError, match=r"^jetstream: set 'stream', 'streamPattern' or 'subjects' to say what to read$"
    ):
        JetStreamOptions.parse("jetstream", {})
    for one in ({"stream": "A"}, {"streamPattern": "A.*"}, {"subjects": "a.>"}):
        assert JetStreamOptions.parse("jetstream", one).model_fields_set


def test_a_stream_and_a_pattern_are_one_too_many() -> None:
    assert refusal(streamPattern="O.*") == "jetstream: set 'stream' or 'streamPattern', not both"


def test_a_pattern_is_a_regular_expression() -> None:
    with pytest.raises(OptionError, match=r"^option 'streamPattern' has 'A\(', which is no regular expression: "):
        JetStreamOptions.parse("jetstream", {"streamPattern": "A("})


@pytest.mark.parametrize("address", ["nats://bob:hun/ter2@h", "nats://bob:hun,ter2@h", "nats://bob:x y@h"])
def test_a_password_in_an_address_is_not_shown_whatever_it_holds(address: str) -> None:
    said = refusal(servers=address)
    assert "hun" not in said
    assert "ter2" not in said
    assert "x y" not in said


def test_overlapping_subjects_are_refused_by_name() -> None:
    assert refusal(subjects="foo.*,bar.>,foo.bar") == (
        "option 'subjects' has 'foo.*' and 'foo.bar', which overlap: messages would be read twice"
    )
    assert parse(subjects="foo.*,foo.bar.baz").subjects == ("foo.*", "foo.bar.baz")


@pytest.mark.parametrize(("subject", "why"), [("a..b", "has an empty token"), ("a.>.b", "has '>' before its end")])
def test_illegal_subjects_are_refused_with_the_reason(subject: str, why: str) -> None:
    assert refusal(subjects=f"ok.>,{subject}").startswith(f"option 'subjects' has '{subject}', which {why}")


@pytest.mark.parametrize("name", ["A.B", "A B", "A*", ">", "A/B", "A\\B"])
def test_illegal_stream_names_are_refused(name: str) -> None:
    assert refusal(stream=f"OK,{name}").startswith(
        f"option 'stream' has '{name}', but a stream's name has no space, dot, slash, * or >"
    )


@pytest.mark.parametrize("name", ["", "a.b", "a b", ">"])
def test_illegal_consumer_names_are_refused(name: str) -> None:
    assert refusal(progressConsumer=name) == (
        f"option 'progressConsumer' must be a consumer's name, without space, dot, slash, * or >, but is '{name}'"
    )


def test_a_domain_and_a_prefix_are_one_too_many() -> None:
    assert refusal(domain="hub", apiPrefix="JS.hub") == "jetstream: set 'domain' or 'apiPrefix', not both"


# Addresses


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nats://a:4223", Address("a", 4223, False)),
        ("nats://a", Address("a", 4222, False)),
        ("a", Address("a", 4222, False)),
        ("a:1", Address("a", 1, False)),
        ("tls://a.example.org:4443/", Address("a.example.org", 4443, True)),
        ("nats://127.0.0.1:4222", Address("127.0.0.1", 4222, False)),
        ("nats://[::1]:4223", Address("::1", 4223, False)),
        ("nats://[::1]", Address("::1", 4222, False)),
    ],
)
def test_addresses(text: str, expected: Address) -> None:
    assert parse(servers=text).servers == (text,)
    assert address(text) == expected


@pytest.mark.parametrize("text", ["http://a:80", "nats://a:port", "nats://a:1:2", "a b", "nats://"])
def test_no_addresses(text: str) -> None:
    assert refusal(servers=f"nats://ok,{text}") == (
        f"jetstream: 'servers' has '{text}', which is no address such as nats://host:4222"
    )


def test_there_must_be_a_server() -> None:
    assert refusal(servers=" , ") == "option 'servers' must name at least one server, but is ' , '"


@pytest.mark.parametrize(
    "text", ["nats://ann:hunter2@a:4222", "nats://hunter2@a:4222", "nats://ok,tls://ann:hunter2@b", "ann:hunter2@a"]
)
def test_a_user_in_an_address_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(OptionError, match=r"^option 'servers' must not hold a user") as caught:
        parse(servers=text)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))
    assert "hunter2" not in repr(caught.value)


# Secrets

SECRETS = sorted(secrets(JetStreamOptions))
SECRET = "S3cr3t-Sw0rdf1sh"


def test_the_secrets_are_known() -> None:
    assert SECRETS == ["credentials", "nkey_seed", "password", "token"]
    declared = {n for n, f in JetStreamOptions.model_fields.items() if f.annotation == SecretStr | None}
    assert set(SECRETS) == declared


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_never_shown(name: str) -> None:
    options = parse(**{alias(name): SECRET})
    again = pickle.loads(pickle.dumps(options))
    texts = [
        repr(options), str(options), f"{options}", f"{options!r}", f"{options.__dict__}", repr(again), str(again),
        options.model_dump_json(), str(options.model_dump()), str(options.model_dump(mode="json")),
        str(list(options.__rich_repr__())), repr([options]), str({"options": options}),
        repr(options.narrowed(("a",))),
    ]  # fmt: skip
    assert [text for text in texts if SECRET in text] == []
    assert options.reveal(name) == again.reveal(name) == SECRET, "hidden, but there"


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_may_be_marked_and_has_the_name_that_spark_hides(name: str) -> None:
    for spelt in (alias(name), shown(JetStreamOptions, name)):
        assert parse(**{spelt: SECRET}).reveal(name) == SECRET
        assert parse(**{spelt.upper(): f"secret:{SECRET}"}).reveal(name) == SECRET
    assert parse(user="secret:ann").user == "secret:ann", "only secrets are marked"


@pytest.mark.parametrize("name", ["nkey_seed", "credentials"])
def test_a_secret_under_both_of_its_names_is_refused(name: str) -> None:
    spelt = shown(JetStreamOptions, name)
    said = refusal(**{alias(name): SECRET, spelt: SECRET})
    assert said == f"set '{alias(name)}' or '{spelt}', not both: they are one option."


def test_a_misspelt_secret_gets_the_name_that_spark_hides() -> None:
    assert refusal(nkeySecrt=SECRET) == "unknown option 'nkeySecrt' for jetstream. Did you mean 'nkeySecret'?"


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize(
    "wrong",
    [
        {"maxRecords": "ten"},
        {"startingOffsets": "newest"},
        {"streamPattern": "A.*"},
        {"startingOfsets": "1"},
        {"readEngine": "x"},
        {"requestTimeout": "1"},
        {"servers": "http://x"},
        {"domain": "a", "apiPrefix": "b"},
    ],
)
def test_no_error_shows_a_secret(name: str, wrong: dict[str, str]) -> None:
    with pytest.raises(OptionError) as caught:
        parse(**{alias(name): SECRET}, **wrong)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert SECRET not in repr(caught.value)


@pytest.mark.parametrize("name", SECRETS)
def test_a_wrong_secret_is_refused_without_showing_it(name: str) -> None:
    # From JSON a value may be of any type.
    with pytest.raises(OptionError, match=f"^option '{shown(JetStream.options_type, name)}' must be") as caught:
        parse(**{alias(name): [SECRET]})
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_comes_from_one_place(name: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    message = refusal(**{alias(name): SECRET, alias(name + "_file"): str(file)})
    assert message == f"jetstream: set '{shown(JetStream.options_type, name)}' or '{alias(name + '_file')}', not both"


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_read_from_its_file_when_it_is_used(name: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    options = parse(**{alias(name + "_file"): str(file)})
    file.write_text(f"{SECRET}\n")
    assert options.reveal(name) == SECRET
    file.write_text("rotated\n")
    assert options.reveal(name) == "rotated"
    assert SECRET not in repr(options)


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_that_was_not_given_is_none(name: str) -> None:
    assert parse().reveal(name) is None


@pytest.mark.parametrize("name", SECRETS)
def test_a_file_that_cannot_be_read_is_an_error_of_its_option(name: str, tmp_path: Path) -> None:
    options = parse(**{alias(name + "_file"): str(tmp_path / "missing")})
    with pytest.raises(OptionError) as caught:
        options.reveal(name)
    assert str(caught.value).startswith(f"cannot read the file of option '{alias(name + '_file')}': ")
    assert "missing" in str(caught.value)


# Texts that would say more to a server than a value

PARSERS = [JetStream.parse, JetStream.parse_sink, CoreNats.parse, CoreNats.parse_sink, S2Streams.parse,
           S2Streams.parse_sink, Iggy.parse, Iggy.parse_sink]  # fmt: skip
ENOUGH = {"stream": "A", "subjects": "a.>", "basin": "some-basin", "topic": "t"}
CONTROL = ["\r\nPUB x 0\r\n\r\n", "\n", "\r", "\0", "\x1b[0m", "\x7f", "\x85", "\ud800"]


def all_texts() -> Iterator[tuple[Callable[[dict[str, str]], Any], str, FieldInfo, dict[str, str]]]:
    """Every option of every format that takes text, with the others that it needs."""
    for parse_ in PARSERS:
        model = parse_.__self__.options_type if parse_.__name__ == "parse" else parse_.__self__.sink_options_type
        needed = {name: value for name, value in ENOUGH.items() if name in model.model_fields}
        for name, field in model.model_fields.items():
            if "str" in str(field.annotation).lower():
                yield parse_, name, field, needed


@pytest.mark.parametrize("text", CONTROL)
def test_no_text_with_a_control_character_is_taken(text: str) -> None:
    tried = set()
    for parse_, name, field, needed in all_texts():
        extra: Any = field.json_schema_extra
        if extra["lines"] and set(text) & set("\r\n"):
            continue
        with pytest.raises(OptionError) as caught:
            parse_(needed | {alias(name): f"{SECRET}{text}{SECRET}"})
        if "SecretStr" in str(field.annotation):
            assert SECRET not in "".join(traceback.format_exception(caught.value)), name
        tried.add(name)
    assert tried >= {
        "user", "password", "token", "nkey_seed", "domain", "api_prefix", "inbox_prefix", "connection_name", "servers",
        "stream", "streams", "stream_prefix", "subjects", "subject", "queue", "consumer", "progress_consumer", "ledger",
        "access_token", "encryption_key", "fencing_token", "basin", "endpoint", "username", "address", "topic",
        "topics", "tls_domain", "capture_stream", "key_columns",
    }  # fmt: skip


@pytest.mark.parametrize("text", CONTROL)
@pytest.mark.parametrize("form", ["option", "file", "environment"])
def test_a_secret_with_a_control_character_is_refused_wherever_it_comes_from(
    form: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if form == "environment" and text in ("\0", "\ud800"):
        pytest.skip("no environment holds it")
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}{text}{SECRET}\n", errors="surrogatepass")
    for parse_, name, variable in (
        (JetStream.parse, "token", None), (JetStream.parse, "password", None), (JetStream.parse, "user", None),
        (S2Streams.parse, "access_token", "S2_ACCESS_TOKEN"), (S2Streams.parse, "encryption_key", None),
        (Iggy.parse, "password", "IGGY_PASSWORD"), (Iggy.parse, "token", "IGGY_TOKEN"),
    ):  # fmt: skip
        model = parse_.__self__.options_type
        given_ = {key: value for key, value in ENOUGH.items() if key in model.model_fields}
        if form == "file":
            given_[alias(f"{name}_file")] = str(file)
        elif form == "option":
            given_[alias(name)] = f"{SECRET}{text}{SECRET}"
        elif variable is None:
            continue
        else:
            monkeypatch.setenv(variable, f"{SECRET}{text}{SECRET}")
        with pytest.raises(OptionError) as caught:
            parse_(given_).reveal(name)
        assert SECRET not in "".join(traceback.format_exception(caught.value))
        assert alias(name) in str(caught.value) or shown(model, name) in str(caught.value)
        if variable:
            monkeypatch.delenv(variable, raising=False)


def test_a_refused_text_is_named_by_its_character_and_not_shown() -> None:
    assert refusal(token=f"{SECRET}\r\nx") == (
        "jetstream: 'token' has the control character U+000D, which no server may be sent: take it out"
    )


def test_texts_of_several_lines_are_taken_where_they_are_meant(tmp_path: Path) -> None:
    creds = "-----BEGIN NATS USER JWT-----\r\neyJ0\r\n------END NATS USER JWT------\n\n\tSUABC\n"
    assert parse(credentials=creds).reveal("credentials") == creds
    (tmp_path / "creds").write_text(creds)
    assert parse(credentialsFile=str(tmp_path / "creds")).reveal("credentials") is not None
    assert refusal(credentials="eyJ0\0SUABC").endswith("U+0000, which no server may be sent: take it out")
    assert parse(stream="A,\n  B", subjects="\n a.>,\n b.>\n").stream == ("A", "B")
    assert parse(startingOffsets='{\n "ORDERS": 5\n}').starting_offsets == {"ORDERS": 5}
    assert "U+000A" in refusal(startingOffsets='{"A\\nB": 5}')
    columns = "id STRING,\n\tamount INT,\r\n _action STRING"
    given_ = {"basin": "some-basin", "stream": "s", "mode": "upsert", "keyColumns": "id", "columns": columns}
    assert S2Streams.parse(given_).columns == columns


@pytest.mark.parametrize("name", ["domain", "apiPrefix", "inboxPrefix", "consumer", "progressConsumer"])
def test_a_name_that_would_be_two_words_of_a_line_is_refused(name: str) -> None:
    assert refusal(**{name: "a b"}).startswith(f"option '{name}' ")
    with pytest.raises(OptionError, match=r"^option 'queue' has 'a b', which has a space"):
        CoreNats.parse({"subjects": "a.>", "queue": "a b"})
    with pytest.raises(OptionError, match=r"^option 'captureStream' must be a stream's name"):
        CoreNats.parse({"subjects": "a.>", "capture": "true", "captureStream": "a b"})


# Options as a whole


def test_options_travel_between_processes() -> None:
    options = parse(subjects="a.>,b.*", requestTimeout="3s", startingOffsets='{"ORDERS": 5}').narrowed(("a.b",))
    again = pickle.loads(pickle.dumps(options))
    assert again == options
    assert again.is_narrowed
    assert again.subjects == ("a.b",)


def test_options_do_not_change() -> None:
    options = parse()
    with pytest.raises(ValueError, match="frozen"):
        options.max_records = 5  # type: ignore[misc]
    options.narrowed(("a.b",))
    assert options.subjects == ()
    assert not options.is_narrowed


def test_options_show_what_was_set() -> None:
    assert repr(parse(maxRecords="5", password=SECRET)) == "JetStreamOptions(maxRecords=5, stream=('ORDERS',))"


@pytest.mark.parametrize("name", FORMATS)
def test_options_have_a_json_schema(name: str) -> None:
    for model in (connector(name).options_type, connector(name).sink_options_type):
        assert model is not None
        schema = json_schema(model)
        assert list(schema["properties"]) == [option for option, _, _ in table(model)]
        json.dumps(schema)
        for key, described in schema["properties"].items():
            assert described["description"], key
            assert {"type", "anyOf", "enum"} & described.keys(), key
            assert described.get("type") != "null", key
            assert {"type": "null"} not in described.get("anyOf", []), key


def test_a_json_schema_takes_what_users_write() -> None:
    schema = json_schema(Everything)["properties"]
    assert schema["wait"] == {
        "type": "string",
        "pattern": schema["wait"]["pattern"],
        "description": "Wait.",
        "default": "15m",
    }
    assert re.match(schema["wait"]["pattern"], "500ms")
    assert not re.match(schema["wait"]["pattern"], "soon")
    assert schema["room"]["default"] == "64mb"
    assert schema["secret"]["writeOnly"]
    assert json_schema(Everything)["required"] == ["name"]
    assert "old" not in schema


class Everything(Options):
    name: str = option(doc="Name.")
    wait: Seconds = option(900.0, doc="Wait.")
    room: Bytes = option(64 << 20, doc="Room.")
    secret: SecretStr | None = option(None, doc="Secret.")
    old: str | None = option(None, doc="Old.", instead="name")


@pytest.mark.parametrize(
    ("seconds", "text"), [(900.0, "15m"), (0.1, "100ms"), (5.0, "5s"), (90.0, "90s"), (3600.0, "1h"), (604800.0, "7d")]
)
def test_durations_read_as_users_write_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(4 << 20, "4mb"), (1 << 30, "1gb"), (1000, "1000"), (64 << 10, "64kb")])
def test_sizes_read_as_users_write_them(count: int, text: str) -> None:
    assert size(count) == text


def test_an_option_that_was_replaced_is_understood_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "penstock"):
        assert Everything.parse("x", {"name": "n", "old": "o"}).old == "o"
    assert "option 'old' of x will go with the next version: set 'name'" in caplog.text


@pytest.mark.parametrize("format", ["jetstream", "s2", "iggy"])
def test_an_option_of_kafka_is_told_with_what_takes_its_place(format: str) -> None:
    for name, words in {"maxOffsetsPerTrigger": "maxRecordsPerTrigger", "subscribe": "stream"}.items():
        with pytest.raises(OptionError, match=rf"option '{name}' is Kafka's\. Set '{words}'.*coming-from-kafka"):
            connector(format).parse({name: "x"})


def test_the_choices_of_an_option_stand_in_its_meaning() -> None:
    meanings = {name: meaning for name, _, meaning in table(S2Streams.sink_options_type)}
    assert "One of `standard`, `express`." in meanings["storageClass"]
    assert "One of" not in meanings["delivery"], "they are explained one by one"


def test_an_option_that_was_replaced_is_not_offered() -> None:
    with pytest.raises(OptionError) as caught:
        S2Streams.parse({"maxRetry": "3"})
    assert "maxRetries" not in str(caught.value)


@pytest.mark.parametrize("format", ["s2", "iggy"])
def test_retries_by_number_hold_where_no_time_is_given(format: str) -> None:
    needed = {"s2": {"basin": "some-basin", "stream": "x"}, "iggy": {"stream": "s", "topic": "t", "password": "p"}}

    def retry(**more: str) -> Any:
        return connector(format).parse(needed[format] | more).retry("asking")

    assert (retry().timeout, retry().attempts) == (60, float("inf"))
    assert (retry(maxRetries="3").timeout, retry(maxRetries="3").attempts) == (float("inf"), 3)
    both = retry(maxRetries="3", reconnectTimeout="5s", retryDelay="1s")
    assert (both.timeout, both.attempts, both.delay) == (5, float("inf"), 1)


def test_a_time_may_be_a_number_of_milliseconds() -> None:
    assert parse(startingTimestamp=1794775751120).starting_timestamp == 1794775751120000
    assert parse(startingTimestamp="1794775751120").starting_timestamp == 1794775751120000


def written_as(**more: str) -> Any:
    return JetStream.parse_sink({"subject": "a", **more})


@pytest.mark.parametrize("name", ["", "a.b", "a b", "a;b", "a/b", "a*", ">", "größe", "x" * 101])
def test_a_txn_app_id_has_only_characters_that_part_no_names(name: str) -> None:
    with pytest.raises(OptionError, match=r"option 'txnAppId' must be 1 to 100 letters, digits, - or _, but is"):
        written_as(txnAppId=name, txnVersion="0")


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("-1", "must be greater than or equal to 0, but is '-1'"),
        ("1.5", "must be a whole number, but is '1.5'"),
        ("", "must be a whole number, but is ''"),
        (str(2**63), "must be less than 9223372036854775808"),
    ],
)
def test_a_txn_version_is_a_whole_number(version: str, why: str) -> None:
    with pytest.raises(OptionError, match=f"option 'txnVersion' {why}"):
        written_as(txnAppId="a", txnVersion=version)


@pytest.mark.parametrize("format", ["jetstream", "s2", "iggy", "journal"])
def test_a_write_is_known_again_by_both_or_by_none(format: str) -> None:
    needed = {
        "jetstream": {"subject": "a"},
        "s2": {"basin": "some-basin", "stream": "x"},
        "iggy": {"stream": "s", "topic": "t", "password": "p"},
        "journal": {"directory": "/tmp/journal"},
    }[format]
    name = "0b9e4a2c-0000-4000-8000-000000000001-main"
    options: Any = connector(format).parse_sink({**needed, "txnappid": name, "txnversion": "7"})
    assert (options.txn_app_id, options.txn_version) == (name, 7)
    for there, missing in (("txnAppId", "txnVersion"), ("txnVersion", "txnAppId")):
        with pytest.raises(OptionError, match=f"'{there}' needs '{missing}' beside it"):
            connector(format).parse_sink({**needed, there: "1"})
