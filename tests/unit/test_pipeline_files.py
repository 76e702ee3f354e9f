"""Pipeline files: what is read from them, and what is said of wrong ones. No Spark, no servers."""

import random
import re
from pathlib import Path

import pytest

from penstock.errors import OptionError
from penstock.options.documents import FileError, Secret, read
from penstock.pipelines import schemas
from penstock.pipelines.convert import convert
from penstock.pipelines.load import load
from penstock.pipelines.new import RECORDS, SINKS, SOURCES, text
from penstock.pipelines.pipeline import Pipeline
from penstock.pipelines.project import project
from penstock.pipelines.transforms import apply

WHOLE = """
key = "orders"
name = "Orders to files and Iggy"

[source]
type = "jetstream"
identifier = "ORDERS"
servers = ["nats://a:4222", "nats://b:4222"]
initial_offset = { ORDERS = 17 }
batch_size = 500
parallelism = 4
poll_interval_ms = 1000
fail_on_data_loss = false

[source.input_schema]
type = "json"
schema = "id BIGINT, region STRING"

[[transforms]]
sql = '''
SELECT id, region
FROM input
'''

[[transforms]]
add_fields = { fields = [{ key = "at", value = { computed = "timestamp_millis" } }] }

[routing]
key = "region"

[[sinks]]
type = "parquet"
identifier = "files"
partition_by = "region"

[[sinks]]
type = "iggy"
identifier = "telemetry/orders"
address = "127.0.0.1:8090"
username = "iggy"
password = { env = "TEST_IGGY_PASSWORD" }
batch_length = 100

[errors]
mode = "dead_letter"
sink = { type = "jetstream", subject = "dead.orders" }

[restart]
max_restarts = 3
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_IGGY_PASSWORD", "swordfish")


def written(folder: Path, text: str, name: str = "orders") -> Path:
    file = folder / f"{name}.toml"
    file.write_text(text)
    return file


def loaded(folder: Path, text: str) -> Pipeline:
    (pipeline,) = load([written(folder, text)])
    return pipeline


def problems(folder: Path, text: str) -> list[str]:
    """What is wrong, without the name of the file."""
    with pytest.raises(FileError) as error:
        load([written(folder, text)])
    return [f"{problem.line}: {problem.text}" for problem in error.value.problems]


def test_a_whole_file_becomes_a_pipeline(folder: Path) -> None:
    pipeline = loaded(folder, WHOLE)
    assert (pipeline.key, pipeline.title) == ("orders", "Orders to files and Iggy")
    assert pipeline.source.options == {
        "servers": "nats://a:4222,nats://b:4222", "stream": "ORDERS", "startingOffsets": '{"ORDERS": 17}',
        "maxRecordsPerTrigger": "500", "minPartitions": "4", "failOnDataLoss": "false",
    }  # fmt: skip
    files, iggy = pipeline.sinks
    assert files.options == {"path": str(folder / "files")}
    assert files.partition_by == ("region",)
    assert (iggy.options["stream"], iggy.options["topic"], iggy.options["batchLength"]) == (
        "telemetry",
        "orders",
        "100",
    )
    assert [transform.kind for transform in pipeline.transforms] == ["sql", "add_fields"]
    assert pipeline.trigger.processing_time == 1.0
    assert pipeline.location == str(folder / ".penstock" / "orders")
    assert pipeline.restart.max_restarts == 3


def test_either_spelling_of_an_option_will_do(folder: Path) -> None:
    source = '[source]\ntype = "jetstream"\nstream = "S"\n{}\n[[sinks]]\ntype = "console"\n'
    for spelt in ('starting_offsets = "latest"', 'startingOffsets = "latest"'):
        assert loaded(folder, source.format(spelt)).source.options["startingOffsets"] == "latest"


def test_properties_of_sparks_own_formats_are_passed_on_and_those_of_ours_are_checked(folder: Path) -> None:
    text = '[source]\ntype = "{}"\nidentifier = "s"\nbootstrap_servers = "h"\nproperties = {{ "{}" = "1s" }}\n{}'
    sink = '[[sinks]]\ntype = "csv"\nidentifier = "x"\nproperties = { header = true }\n'
    pipeline = loaded(folder, text.format("kafka", "fetchOffset.retryIntervalMs", sink))
    assert pipeline.source.options["fetchOffset.retryIntervalMs"] == "1s"
    assert pipeline.sinks[0].options["header"] == "true"
    wrong = text.format("jetstream", "requestTimeot", sink).replace('bootstrap_servers = "h"\n', "")
    assert any("unknown option 'requestTimeot'" in problem for problem in problems(folder, wrong))


def test_records_of_kafka_bring_their_headers(folder: Path) -> None:
    text = '[source]\ntype = "kafka"\nidentifier = "t"\nbootstrap_servers = "h"\n{}[[sinks]]\ntype = "console"\n'
    assert loaded(folder, text.format("")).source.options["includeHeaders"] == "true"
    assert loaded(folder, text.format("include_headers = false\n")).source.options["includeHeaders"] == "false"


def test_a_secret_is_in_no_text_about_a_pipeline(folder: Path) -> None:
    pipeline = loaded(folder, WHOLE)
    assert pipeline.sinks[1].options["password"] == "secret:swordfish"
    assert pipeline.sinks[1].shown()["password"] == "***"
    assert "swordfish" not in repr(pipeline)
    assert "swordfish" not in repr(read(folder / "orders.toml").values["sinks"][1]["password"])


def test_a_secret_in_a_file_travels_as_the_name_of_the_file(folder: Path) -> None:
    (folder / "password").write_text("swordfish\n")
    iggy = loaded(folder, WHOLE.replace('{ env = "TEST_IGGY_PASSWORD" }', '{ file = "password" }')).sinks[1]
    assert iggy.options["passwordFile"] == str(folder / "password")
    assert "password" not in iggy.options


def test_variables_have_defaults_and_can_be_escaped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_NAME", "x")
    given = read(written(folder, 'a = "${TEST_NAME}/${TEST_UNSET:-y}/$${z}"\nb = { env = "TEST_NAME" }\n')).values
    assert given == {"a": "x/y/${z}", "b": Secret("x", env="TEST_NAME")}


def test_all_problems_are_told_at_once_with_their_lines(folder: Path) -> None:
    wrong = """key = "has space"
[source]
type = "jetstream"
identifier = "ORDERS"
max_records_per_triger = 5

[source.input_schema]
type = "jsn"

[[sinks]]
type = "parqet"

[[sinks]]
type = "iggy"
identifier = "s/t"
batch_length = "x"

[trigger]
intervall = "5s"

[[transforms]]
sqll = "SELECT 1"
"""
    assert problems(folder, wrong) == [
        "1: 'key' must have letters, digits, - and _ only, and begin with a letter or digit.",
        "5: unknown option 'max_records_per_triger' for jetstream. Did you mean 'maxRecordsPerTrigger'?",
        "8: 'type' must be 'json', 'csv', 'text', 'raw', 'avro' or 'protobuf'.",
        "11: there is no sink of the type 'parqet'. Did you mean 'parquet'? For any other format of Spark write "
        '{ custom = "parqet" }.',
        "16: option 'batchLength' must be a whole number, but is 'x'",
        "19: unknown key 'intervall' in [trigger]. There are: processing_time, available_now.",
        "22: there is no transform 'sqll'. Did you mean 'sql'?",
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("[source]\n", "[sauce]\n"), "unknown key 'sauce' in a pipeline file. Did you mean 'source'?"),
        (('type = "json"', 'type = "avr0"'), "'type' must be 'json', 'csv', 'text', 'raw', 'avro' or 'protobuf'"),
        (('mode = "dead_letter"', 'mode = "skip"'), "which writes no dead letters: leave 'sink' out"),
        (("batch_size = 500", "batch_size = 500\nmax_records_per_trigger = 5"), None),
        (('{ env = "TEST_IGGY_PASSWORD" }', '{ env = "TEST_UNSET" }'), "variable 'TEST_UNSET' is not set"),
        (('{ env = "TEST_IGGY_PASSWORD" }', '{ file = "gone" }'), "the file 'gone' cannot be read"),
        (("initial_offset = { ORDERS = 17 }", 'initial_offset = 1.5'), "must be 'earliest', 'latest', a whole number"),
        (('key = "region"', 'kex = "region"'), "no sink here takes a column 'kex'"),
        (("[restart]", "[restart"), "is not valid TOML"),
        (("max_restarts = 3", 'max_restarts = "x"'), "'max_restarts' must be a whole number"),
        (('type = "iggy"', 'type = "parquet"'), "two sinks are called 'parquet'"),
        (('computed = "timestamp_millis"', 'computed = "now"'), "'fields.0.value.computed' must be"),
        (('"telemetry/orders"', '"telemetry/{region}"'), "the topic of Iggy is one name, without columns in braces"),
        (('sink = { type = "jetstream", subject = "dead.orders" }', 'sink = { type = "jetstream" }'),
         "the sink for dead letters does not say where they go: set 'subject'."),
        (('subject = "dead.orders"', 'subject = "dead.{region}"'), "'subject' of dead letters is one name"),
        (('type = "parquet"', 'type = "parquet"\nname = "dead-letters"'), "two sinks are called 'dead-letters'"),
        (('identifier = "files"', ""), "the sink 'parquet' needs an 'identifier': the folder."),
    ],
)  # fmt: skip
def test_each_mistake_has_its_sentence(folder: Path, change: tuple[str, str], said: str | None) -> None:
    text = WHOLE.replace(*change, 1)
    assert text != WHOLE
    if said is None:
        assert loaded(folder, text).source.options["maxRecordsPerTrigger"] == "5", "the option itself wins"
    else:
        assert any(said in problem for problem in problems(folder, text)), problems(folder, text)


def test_a_variable_that_is_not_set_hides_no_other_mistake(folder: Path) -> None:
    text = WHOLE.replace("TEST_IGGY_PASSWORD", "TEST_UNSET").replace('identifier = "ORDERS"', 'identifer = "ORDERS"')
    said = problems(folder, text)
    assert any("'TEST_UNSET' is not set" in each for each in said)
    assert any("unknown key 'identifer'. Did you mean 'identifier'?" in each for each in said)
    assert not any("no password" in each for each in said), "that follows from the first"


def test_streams_alone_are_no_pipeline(folder: Path) -> None:
    said = problems(folder, '[[streams]]\nidentifier = "a/b"\npassword = "x"\n')
    assert any("there is no [[sinks]]: where do rows go?" in each for each in said)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def rows(df):\n    return {}['nonesuch']\n", "python: KeyError: 'nonesuch'"),
        ("def rows(df:\n", "fails when it is imported: SyntaxError"),
    ],
)
def test_a_function_that_fails_is_told_with_its_line(folder: Path, body: str, said: str) -> None:
    name = f"broken{abs(hash(body))}"
    (folder / f"{name}.py").write_text(body)
    text = f'[source]\ntype = "rate"\n[[sinks]]\ntype = "noop"\n[[transforms]]\npython = "{name}:rows"\n'
    pipeline = loaded(folder, text)
    with pytest.raises(OptionError, match=re.escape(said)) as error:
        apply(None, pipeline.transforms, pipeline.file)  # type: ignore[arg-type] # it is not looked at
    assert str(error.value).startswith(f"{pipeline.file}:6: ")


@pytest.mark.parametrize(
    ("source", "sink", "said"),
    [
        ("jetstream", "jetstream", None),  # a copy keeps its subjects
        ("rate", "jetstream", "set 'subject', or 'subject' in [routing]"),
        ("rate", "kafka", "set 'topic', or 'topic' in [routing]"),
        ("iggy", "s2", None),
        ("nats", "s2", "set 'stream', or 'stream' in [routing]"),
    ],
)
def test_rows_must_go_somewhere(folder: Path, source: str, sink: str, said: str | None) -> None:
    more = {"s2": 'basin = "basin-of-ours"\n', "kafka": 'bootstrap_servers = "localhost:9092"\n'}.get(sink, "")
    names = {"jetstream": "A", "iggy": "a/b", "nats": "a.>"}
    identifier = f'identifier = "{names[source]}"' if source in names else ""
    password = 'password = "x"' if source == "iggy" else ""
    ends = f'[source]\ntype = "{source}"\n{identifier}\n{password}\n[[sinks]]\ntype = "{sink}"\n{more}'
    if said is None:
        loaded(folder, ends)
    else:
        assert [problem.partition(": ")[2] for problem in problems(folder, ends)] == [
            f"the sink '{sink}' does not say where rows go: {said}."
        ]
        loaded(folder, f'{ends}identifier = "x"\n')


def test_mutated_files_give_sentences_with_file_and_line_and_never_a_traceback(folder: Path) -> None:
    chosen, refused = random.Random(7), 0
    for number in range(400):
        text = list(WHOLE)
        for _ in range(chosen.randint(1, 4)):
            at, what = chosen.randrange(len(text)), chosen.randrange(4)
            if what == 0:
                del text[at : at + chosen.randint(1, 12)]
            elif what == 1:
                text.insert(at, chosen.choice(["\n", '"', "[", "]", "=", "{", "}", "x", "7", "\x00", "é", "#", "'''"]))
            elif what == 2:
                text[at] = chosen.choice("abc[]{}=\"'\n.0")
            else:
                start = chosen.randrange(len(text))
                text[at:at] = text[start : start + chosen.randint(1, 60)]
        file = written(folder, "".join(text), f"mutated{number}")
        try:
            load([file])
        except FileError as error:
            refused += 1
            for line in str(error).splitlines():
                assert re.match(rf"{re.escape(str(file))}:\d+: \S", line) or not line.startswith(str(folder)), line
    assert refused > 200


def test_files_of_a_folder_must_not_share_a_key_or_a_checkpoint(folder: Path) -> None:
    plain = '[source]\ntype = "rate"\n[[sinks]]\ntype = "console"\n'
    written(folder, plain, "a")
    written(folder, f'key = "a"\n{plain}', "b")
    with pytest.raises(FileError, match=r"b.toml:1: key 'a' is also that of .*a.toml"):
        load([folder])


def test_streams_of_iggy_stand_for_the_end_that_is_missing(folder: Path) -> None:
    streams = '[[streams]]\nstream = "s"\ntopic = "t"\nschema = "json"\nbatch_length = 10\n'
    shared = '[iggy]\naddress = "h:1"\nusername = "u"\npassword = "p"\n'
    pipeline = loaded(folder, f'[source]\ntype = "rate"\n{shared}{streams}')
    (sink,) = pipeline.sinks
    assert (sink.type, sink.options["address"], sink.options["topic"]) == ("iggy", "h:1", "t")
    assert sink.schema is not None
    assert sink.schema.type == "json"


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("sink", SINKS)
def test_what_new_writes_passes_check(folder: Path, source: str, sink: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IGGY_PASSWORD", "S2_ACCESS_TOKEN"):
        monkeypatch.setenv(name, "x")
    ends = [
        (name, {each.key: each.default for each in kinds[name]}) for name, kinds in ((source, SOURCES), (sink, SINKS))
    ]
    for kind, questions in RECORDS.items():
        records = (kind, {each.key: each.default for each in questions})
        loaded(folder, text("new", ends[0], ends[1], records if source != "rate" else None))


SEED = """
[source]
type = "flink_source"

[source.config]
flink_cluster_url = "http://localhost:8081"
connection_timeout_secs = 30
source_type = "kafka"
source_identifier = "sensor-events"
job_name_pattern = ".*sensor.*"
batch_size = 500
poll_interval_ms = 1000
initial_offset = "latest"
skip_errors = false
enable_checkpointing = true
restore_from_checkpoint = "chk-123456"
parallelism = 4

[source.config.auth]
auth_type = "bearer"
token = "your-auth-token"

[source.config.input_schema]
type = "json"

[source.config.output_schema]
type = "json"

[source.config.properties]
"queryable.state.name" = "event-stream"
"state.backend" = "rocksdb"
"kafka.bootstrap.servers" = "localhost:9092"
"kafka.group.id" = "flink-consumer-group"
"""


def test_the_seeds_file_is_converted_and_what_means_nothing_here_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IGGY_PASSWORD", "x")
    converted = convert(SEED, "sensors")
    pipeline = loaded(folder, converted.text)
    assert pipeline.source.type == "kafka"
    assert pipeline.source.options["subscribe"] == "sensor-events"
    assert pipeline.source.options["kafka.bootstrap.servers"] == "localhost:9092"
    assert pipeline.source.options["maxOffsetsPerTrigger"] == "500"
    assert pipeline.trigger.processing_time == 1.0
    assert pipeline.sinks[0].type == "iggy"
    left_out = {line.partition(":")[0] for line in converted.left_out}
    assert left_out == {
        "flink_cluster_url", "connection_timeout_secs", "auth", "job_name_pattern", "enable_checkpointing",
        "restore_from_checkpoint", "properties.queryable.state.name", "properties.state.backend",
        "properties.kafka.group.id",
    }  # fmt: skip
    assert "your-auth-token" not in converted.text


@pytest.mark.parametrize(
    ("source", "sink", "said"),
    [
        ('type = "jetstream"\nstream = "S"', 'type = "parquet"\nidentifier = "x"', "exactly once"),
        ('type = "rate"', 'type = "kafka"\nidentifier = "x"\nbootstrap_servers = "h"', "at least once to"),
        ('type = "rate"', 'type = "jetstream"\nsubject = "x"\ndelivery = "at_least_once"', "at least once"),
        ('type = "jetstream"\nstream = "S"\nack = "all"\nconsumer = "c"', 'type = "console"', "at least once: the con"),
        ('type = "nats"\nsubjects = "a.>"', 'type = "parquet"\nidentifier = "x"', "at most once: the source cannot"),
        ('type = "nats"\nsubjects = "a.>"\ncapture = true', 'type = "parquet"\nidentifier = "x"', "exactly once"),
    ],
)  # fmt: skip
def test_the_guarantee_is_that_of_the_weakest_part(folder: Path, source: str, sink: str, said: str) -> None:
    assert loaded(folder, f"[source]\n{source}\n[[sinks]]\n{sink}\n").guarantee().startswith(said)


def test_ids_of_ones_own_in_iggy_are_at_least_once(folder: Path) -> None:
    text = '[source]\ntype = "jetstream"\nstream = "S"\n[[sinks]]\ntype = "iggy"\nidentifier = "s/t"\npassword = "x"\n'
    assert loaded(folder, text).guarantee().startswith("exactly once")
    own = loaded(folder, text + '[routing]\nid = "uuid_of_order"\n')
    assert own.guarantee().startswith("at least once to 'iggy'")
    assert own.sinks[0].options["delivery"] == "at_least_once"


AVRO = '{"type": "record", "name": "shop.Order", "fields": [{"name": "id", "type": "long"}]}'
PROTO = 'syntax = "proto3"; package shop; message Order { int64 id = 1; }'


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ('type = "avro"', "avro needs 'schema', 'schema_file', or 'schema_registry_url'."),
        ('type = "avro"\nschema = "{"', "this is no schema of Avro: {"),
        ('type = "avro"\nschema_file = "gone.avsc"', "there is no file '"),
        ('type = "avro"\nschema_file = "order.proto"', "this is no schema of Avro: syntax"),
        (f'type = "avro"\nschema = \'{AVRO}\'\nschema_file = "order.avsc"', "leave one of both out"),
        ('type = "avro"\nsubject = "orders"', "has 'subject', and no 'schema_registry_url'"),
        ('type = "avro"\nschema_id = 3', "has 'schema_id', and no 'schema_registry_url'"),
        ('type = "avro"\nschema_registry_url = "http://x"\nmessage = "m"', "has 'message', which is for protobuf"),
        ('type = "avro"\nschema_registry_url = "http://x"\nheader = true', "has 'header', which is not for avro"),
        ('type = "json"\nschema_id = 3', "has 'schema_id', which is for avro and protobuf, and its type is json"),
        ('type = "protobuf"\nschema_file = "order.proto"', "protobuf needs the name of the 'message'"),
        ('type = "protobuf"\nschema_file = "order.proto"\nmessage = "shop.Oder"', "shop.Order"),
        ('type = "avro"\nschema_registry = "http://x"', "Did you mean 'schema_registry"),
        ('type = "avro"\nschema_file = "order.avsc"', None),
        ('type = "avro"\nschema_registry_url = "http://x"', None),
        ('type = "protobuf"\nschema_file = "order.proto"\nmessage = "shop.Order"', None),
        ('type = "protobuf"\nschema_registry_url = "http://x"\nschema_id = 3', None),
    ],
)
def test_schemas_of_avro_and_protobuf_are_looked_at_before_anything_runs(
    folder: Path, schema: str, said: str | None
) -> None:
    (folder / "order.avsc").write_text(AVRO)
    (folder / "order.proto").write_text(PROTO)
    text = f"""
[source]
type = "jetstream"
identifier = "ORDERS"

[source.input_schema]
{schema}

[[sinks]]
type = "console"
"""
    if said is None:
        load([written(folder, text)])
    else:
        (problem,) = problems(folder, text)
        assert said in problem
        assert int(problem.partition(":")[0]) >= 6


def test_the_password_of_a_registry_is_not_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_REGISTRY_PASSWORD", "hunter2")
    text = """
[source]
type = "jetstream"
identifier = "ORDERS"

[source.input_schema]
type = "avro"
schema_registry_url = "http://registry"
schema_registry_username = "ann"
schema_registry_password = { env = "TEST_REGISTRY_PASSWORD" }

[[sinks]]
type = "console"
"""
    (pipeline,) = load([written(folder, text)])
    assert "hunter2" not in repr(pipeline)
    assert pipeline.source.schema is not None
    given = schemas.to_decode(pipeline.source.schema, pipeline.source.topic)
    assert given["registry"].password == "hunter2"
    assert given["subject"] == "ORDERS-value"
    assert "hunter2" not in repr(given)


def test_every_option_that_is_a_path_begins_where_the_file_lies(folder: Path) -> None:
    text = """
[source]
type = "journal"
identifier = "in"

[[sinks]]
type = "jetstream"
subject = "x"
credentials_file = "nats.creds"
tls_ca = "/etc/ca.pem"

[[sinks]]
type = "journal"
directory = "out"
"""
    pipeline = loaded(folder, text)
    jetstream, journal = (sink.options for sink in pipeline.sinks)
    assert (pipeline.source.options["directory"], journal["directory"]) == (f"{folder}/in", f"{folder}/out")
    assert (jetstream["credentialsFile"], jetstream["tlsCa"]) == (f"{folder}/nats.creds", "/etc/ca.pem")


@pytest.mark.parametrize(
    ("sink", "transform", "expected"),
    [
        ('subject = "x"', "SELECT * FROM input", "_meta.headers AS headers"),
        ('subject = "x"', "SELECT value, count(*) AS n FROM input GROUP BY value", None),
        ('subject = "x"', "SELECT * EXCEPT (_meta) FROM input", None),
        ('subject = "x"\nheaders = "none"', "SELECT * FROM input", None),
        ('subject = "x"\nheaders = "both"', "SELECT value, _meta FROM input", "concat(coalesce(_meta.headers"),
    ],
    ids=["those of the record", "without _meta", "all but _meta", "none", "both"],
)
def test_an_exported_pipeline_has_the_headers_that_its_sink_wants(
    folder: Path, sink: str, transform: str, expected: str | None
) -> None:
    source = '[source]\ntype = "jetstream"\nstream = "S"\n'
    text = f'{source}[[transforms]]\nsql = "{transform}"\n[[sinks]]\ntype = "jetstream"\n{sink}\n'
    (module,) = (text for name, text in project(loaded(folder, text), "file:///x").items() if name.endswith(".py"))
    last = module.rpartition("SELECT * FROM (")[2]
    assert ("headers" in last) == (expected is not None)
    assert expected is None or expected in last
    assert "named_struct('source', 'jetstream', 'stream', string(stream)" in module
