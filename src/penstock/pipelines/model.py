"""The keys of a pipeline file, declared once: parsing, the JSON Schema and the tables of the documentation derive from
these models. Knows no files, no Spark and no server.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, StringConstraints, model_validator

from penstock.options.documents import Secret
from penstock.options.types import Count, Csv, Seconds

Key = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,79}$")]
Text = Annotated[str, StringConstraints(min_length=1)]
# What is passed on to a format, as it is.
Properties = dict[str, Any]


def _text(value: Any) -> Any:
    """A secret where text is expected: its value. Connectors mask their own secrets."""
    return value.value if isinstance(value, Secret) else value


def _places(value: Any) -> Any:
    """Positions by name or partition, from one number or a table."""
    if isinstance(value, bool) or not isinstance(value, str | int | dict):
        raise ValueError("must be 'earliest', 'latest', a whole number, or a table of positions such as { 0 = 42 }")
    if isinstance(value, dict) and not all(type(number) is int and number >= 0 for number in value.values()):
        raise ValueError("must be a table from names or partitions to whole numbers, such as { 0 = 42 }")
    return value


class Section(BaseModel):
    """A table of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, arbitrary_types_allowed=True)


class Top(Section):
    """What stands before the first table."""

    key: Key | None = Field(None, description="Name of the pipeline: letters, digits, `-` and `_`. No two that run "
                            "together may have the same. By default the name of the file.")  # fmt: skip
    name: Text | None = Field(None, description="Title for people. By default the key.")
    enabled: bool = Field(True, description="With `false` the pipeline is checked, but not run.")
    version: int = Field(0, description="A number of yours. It has no effect.")


class Schema(Section):
    """How the bytes of a record are read, or written. [Schemas](schemas.md) has more."""

    type: Literal["json", "csv", "text", "raw", "avro", "protobuf"] = Field(
        description="`json`, `csv`, `text` (UTF-8), `raw` (bytes as they are), `avro` or `protobuf`."
    )
    fields: Text | None = Field(
        None,
        alias="schema",
        description="Columns and types, as SQL writes them: `id BIGINT, amount DOUBLE`. Without it JSON is decoded "
        "into one column `payload` of the type VARIANT. Of `avro`, a schema of Avro; of `protobuf`, a .proto file.",
    )
    schema_file: Annotated[Text, BeforeValidator(_text)] | None = Field(
        None,
        description="`avro`, `protobuf`: the file that holds the schema. Of `protobuf` a .proto file, or what `protoc "
        "--include_imports -o FILE` writes.",
    )
    message: Text | None = Field(None, description="`protobuf`: the message, with its package: `shop.Order`.")
    schema_registry_url: Annotated[Text, BeforeValidator(_text)] | None = Field(
        None,
        description="`avro`, `protobuf`: a registry with Confluent's API. Records have the id of their schema in "
        "front.",
    )
    schema_registry_username: Annotated[Text, BeforeValidator(_text)] | None = Field(None, description="User.")
    schema_registry_password: Annotated[SecretStr, BeforeValidator(_text)] | None = Field(None, description="Password.")
    schema_registry_token: Annotated[SecretStr, BeforeValidator(_text)] | None = Field(
        None, description="Bearer token, in place of user and password."
    )
    schema_registry_ca: Text | None = Field(None, description="PEM file of the authorities to trust.")
    schema_registry_cert: Text | None = Field(None, description="PEM file of a certificate of our own.")
    schema_registry_key: Text | None = Field(None, description="PEM file of its key.")
    schema_id: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="`[input_schema]`: read by the schema with this id, whatever comes later. Records may then also be "
        "without an id.",
    )
    subject: Text | None = Field(
        None,
        description="The subject of the registry. To read, its newest schema is what records are read by. By default "
        "that of `subject_name_strategy`.",
    )
    subject_name_strategy: Literal["topic_name", "record_name", "topic_record_name"] = Field(
        "topic_name",
        description="How Kafka's clients name a subject: `topic_name` (`orders-value`, of the `identifier`), "
        "`record_name` or `topic_record_name`, of the name in `schema` or of `message`.",
    )
    auto_register: bool = Field(
        True, description="`[output_schema]`: register the schema if the subject does not have it. Else it must."
    )
    use_latest_version: bool = Field(
        False,
        description="`[output_schema]`: write by the newest schema of the subject, not by one of the columns.",
    )
    header: bool = Field(False, description="`csv`: leave out lines that hold the names of the columns.")
    properties: Properties = Field({}, description="Options of Spark's `from_json`, `to_json`, `from_csv`, `to_csv`.")

    @model_validator(mode="after")
    def _fits_its_type(self) -> Self:
        given = self.model_fields_set - {"type", "fields"}
        of_binary = given - {"header", "properties"}
        if self.type not in ("avro", "protobuf") and of_binary:
            raise ValueError(f"has '{min(of_binary)}', which is for avro and protobuf, and its type is {self.type}")
        if self.type in ("avro", "protobuf") and given & {"header", "properties"}:
            raise ValueError(f"has '{min(given & {'header', 'properties'})}', which is not for {self.type}")
        if self.fields is not None and self.schema_file is not None:
            raise ValueError("has 'schema' and 'schema_file': leave one of both out")
        if self.message is not None and self.type != "protobuf":
            raise ValueError("has 'message', which is for protobuf: a schema of Avro has one record")
        of_registry = {name for name in given if name.startswith(("schema_registry_", "subject", "auto_", "use_"))}
        if self.schema_registry_url is None and (of_registry or self.schema_id is not None):
            raise ValueError(f"has '{min(of_registry, default='schema_id')}', and no 'schema_registry_url'")
        return self


class Source(Section):
    """Where records come from, with an `input_schema` or none. All other keys are options of the format, in either
    spelling.
    """

    model_config = ConfigDict(extra="allow")

    type: Any = Field(
        description="`jetstream`, `nats`, `s2`, `iggy`, `kinesis`, `journal`, `kafka`, `file_system`, `rate`, or "
        '`{ custom = "format" }` for any other format of Spark.'
    )
    identifier: Annotated[Text, BeforeValidator(_text)] | None = Field(
        None,
        description="What is read: the stream (`jetstream`, `s2`, `kinesis`), the subjects (`nats`), `stream/topic` "
        "(`iggy`), the folder (`journal`), the topic (`kafka`), the path or glob (`file_system`). Also "
        "`source_identifier`.",
    )
    initial_offset: Annotated[str | int | dict[str, int], BeforeValidator(_places)] | None = Field(
        None,
        description="Where a new pipeline starts: `earliest`, `latest`, a number, or a table of positions. Afterwards "
        "the checkpoint says where it goes on. By default `earliest`.",
    )
    batch_size: Count | None = Field(None, description="At most so many records a batch; of `file_system`, files.")
    parallelism: Count | None = Field(None, description="Read with at least so many tasks.")
    poll_interval_ms: Count | None = Field(None, description="The same as `processing_time` in `[trigger]`, in ms.")
    skip_errors: bool = Field(False, description='The same as `mode = "skip"` in `[errors]`.')
    properties: Properties = Field({}, description="Options of the format, passed on as they are written.")


class Sink(Section):
    """Where rows go. All other keys are options of the format, in either spelling."""

    model_config = ConfigDict(extra="allow")

    name: Key | None = Field(None, description="Name of the sink, for `[routing]` and messages. By default its type.")
    type: Any = Field(
        description="`jetstream`, `nats`, `s2`, `iggy`, `kinesis`, `journal`, `kafka`, `parquet`, `json`, `csv`, "
        '`text`, `orc`, `delta`, `iceberg`, `console`, `noop`, or `{ custom = "format" }`.'
    )
    identifier: Annotated[Text, BeforeValidator(_text)] | None = Field(
        None,
        description="Where rows go: the subject (`jetstream`, `nats`), the stream (`s2`, `kinesis`), `stream/topic` "
        "(`iggy`), the folder (`journal`), the topic (`kafka`), the folder (files, `delta`), the table (`iceberg`).",
    )
    envelope: bool = Field(
        False,
        description="Write one JSON document for each row: `id`, `timestamp`, `headers` and `payload`.",
    )
    headers: Literal["keep", "source", "both", "none"] | None = Field(
        None,
        description="Headers of a message: `keep` those of the record, `source` (where it came from: `source`, "
        "`partition`, `offset`), `both`, or `none`. By default `source` for `iggy`, else `keep`.",
    )
    output_schema: Any = Field(None, description="How rows become bytes; it wins over `[output_schema]` of the file. "
                               'Also `schema = "json"`, for its type alone.')  # fmt: skip
    properties: Properties = Field({}, description="Options of the format, passed on as they are written.")


class Trigger(Section):
    """When a batch begins. By default as soon as the one before has ended and there is something to read."""

    processing_time: Seconds | None = Field(None, description="At most one batch in this time: `1s`, `5m`.")
    available_now: bool = Field(False, description="Read what is there, then end.")


class CheckpointTable(Section):
    """Where the pipeline keeps its place."""

    location: Annotated[Text, BeforeValidator(_text)] | None = Field(
        None,
        description="Folder, on a storage that the whole cluster reaches. By default `.penstock/KEY` beside the file.",
    )
    restore_from_checkpoint: Text | None = Field(
        None, description="Begin with a copy of this checkpoint. Has an effect once, where the location is empty."
    )
    restore_from_batch: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Go back to the end of this batch. Has an effect once for each value."
    )


class Errors(Section):
    """What to do with a record that cannot be decoded."""

    mode: Literal["fail", "skip", "dead_letter"] = Field(
        "fail", description="`fail`: the batch fails. `skip`: leave it out, and count it. `dead_letter`: write it to "
        "`sink`.",
    )  # fmt: skip
    sink: Any = Field(None, description="Where dead letters go: a table like those of `[[sinks]]`.")


class Restart(Section):
    """What happens after a failure. Other pipelines of the same run go on."""

    max_restarts: Annotated[int, Field(ge=0)] = Field(
        5, description="So many failures in a row, without `reset_after` in between, and the pipeline stays down."
    )
    # Spark lets Python processes of a failed batch go on for about three seconds; Iggy wants one attempt at a time.
    backoff: Seconds = Field(5.0, description="The wait before the first restart. It doubles each time.")
    max_backoff: Seconds = Field(60.0, description="The longest wait.")
    reset_after: Seconds = Field(600.0, description="After so long without a failure the count begins anew.")


class Spark(Section):
    """The Spark application. Pipelines that run together must agree."""

    master: Text | None = Field(None, description="Where Spark runs: `local[*]` (the default), `spark://host:7077`.")
    remote: Text | None = Field(
        None, description="A Spark Connect server: `sc://host:15002`. It is used in place of `master`."
    )
    packages: Csv = Field((), description="Maven coordinates to fetch, for formats whose jars Spark does not bring.")
    conf: Properties = Field({}, description='Spark\'s own settings: `"spark.sql.shuffle.partitions" = 4`.')


class Routing(Section):
    """SQL expressions over the columns of a row, after all transforms."""

    model_config = ConfigDict(extra="allow")

    sink: Text | None = Field(
        None,
        description="The name of the sink, or an array of names. NULL goes to none. Without it every row goes to every "
        "sink. All other keys are columns that a sink takes, such as `subject`, `key` or `topic`.",
    )


class FieldValue(Section):
    """A value: one of the two."""

    static: Any = Field(None, description="A constant.")
    computed: (
        Literal["date_time", "timestamp_nanos", "timestamp_micros", "timestamp_millis", "timestamp_seconds", "uuid_v4",
                "uuid_v7"] | None
    ) = Field(None, description="The same when a batch is run again.")  # fmt: skip


class NewField(Section):
    """A field that is added."""

    key: Text
    value: FieldValue


class ChangedField(NewField):
    """A field that is updated."""

    condition: Literal["always", "key_exists", "key_not_exists"] = "always"


class AddFields(Section):
    """Adds fields."""

    enabled: bool = Field(True, description="With `false` the transform is left out.")
    fields: list[NewField] = Field(
        description="Each with `key`, and with `value.static` (a constant) or `value.computed` (`date_time`, "
        "`timestamp_nanos`, `timestamp_micros`, `timestamp_millis`, `timestamp_seconds`, `uuid_v4`, `uuid_v7`)."
    )


class UpdateFields(Section):
    """Sets fields, always or by a condition."""

    enabled: bool = Field(True, description="With `false` the transform is left out.")
    fields: list[ChangedField] = Field(description="As in `add_fields`, with `condition`: `always`, `key_exists` or "
                                       "`key_not_exists`.")  # fmt: skip


class DeleteFields(Section):
    """Leaves fields out."""

    enabled: bool = Field(True, description="With `false` the transform is left out.")
    fields: list[Text] = Field(description="Names.")


class KeyPattern(Section):
    """A pattern of a field's name: one of these."""

    exact: str | None = None
    starts_with: str | None = None
    ends_with: str | None = None
    contains: str | None = None
    regex: str | None = None


class ValuePattern(Section):
    """A pattern of a field's value: one of these."""

    equals: str | int | float | bool | None = None
    contains: str | None = None
    regex: str | None = None
    greater_than: float | None = None
    less_than: float | None = None
    between: tuple[float, float] | None = None


class Pattern(Section):
    """A pattern of a field: both parts must match."""

    key_pattern: KeyPattern | None = None
    value_pattern: (
        ValuePattern
        | Literal["is_null", "is_not_null", "is_string", "is_number", "is_boolean", "is_object", "is_array"]
        | None
    ) = None  # fmt: skip


class FilterFields(Section):
    """Keeps some fields, or leaves them out."""

    enabled: bool = Field(True, description="With `false` the transform is left out.")
    keep_fields: list[Text] = Field([], description="Fields that stay in any case.")
    patterns: list[Pattern] = Field(
        [],
        description="Each with a `key_pattern` (`exact`, `starts_with`, `ends_with`, `contains` or `regex`), a "
        "`value_pattern` (`equals`, `contains`, `regex`, `greater_than`, `less_than`, `between`, or one of the names "
        "`is_null`, `is_not_null`, `is_string`, `is_number`, `is_boolean`, `is_object`, `is_array`), or both.",
    )
    include_matching: bool = Field(True, description="Keep what matches; with `false`, leave it out.")


class UnwrapEnvelope(Section):
    """Puts the fields of one field in the place of all."""

    enabled: bool = Field(True, description="With `false` the transform is left out.")
    field: Text = Field(description="The field whose fields take the place of the others.")


class Sql(Section):
    """A query."""

    sql: Text = Field(
        description="A SELECT over `input`, the rows so far. Keep `_meta`, or headers and origin are lost."
    )


class PythonFunction(Section):
    """A function."""

    python: Annotated[str, StringConstraints(pattern=r"^[\w.]+:\w+$")] = Field(
        description="`module:function`, from DataFrame to DataFrame. The module is looked for beside the file too."
    )


FIELD_TRANSFORMS: dict[str, type[Section]] = {
    "add_fields": AddFields,
    "delete_fields": DeleteFields,
    "filter_fields": FilterFields,
    "update_fields": UpdateFields,
    "unwrap_envelope": UnwrapEnvelope,
}
TRANSFORMS: dict[str, type[Section]] = {"sql": Sql, "python": PythonFunction, **FIELD_TRANSFORMS}
