"""A first pipeline file from a few answers. Pure: answers in, text out."""

from collections.abc import Mapping
from typing import NamedTuple


class Question(NamedTuple):
    """One thing to ask: the key that the answer goes to, the question, and what most people answer."""

    key: str
    text: str
    default: str


_SERVERS = Question("servers", "Addresses of the servers", "nats://127.0.0.1:4222")
_IGGY = (Question("address", "Address of the server", "127.0.0.1:8090"), Question("username", "User", "iggy"))
_KAFKA = Question("bootstrap_servers", "Brokers", "localhost:9092")
_REGION = Question("region", "Region", "us-east-1")
_BASIN = Question("basin", "Basin", "my-basin")

SOURCES: Mapping[str, tuple[Question, ...]] = {
    "jetstream": (_SERVERS, Question("identifier", "Stream", "ORDERS")),
    "nats": (_SERVERS, Question("identifier", "Subjects", "orders.>")),
    "s2": (_BASIN, Question("identifier", "Stream", "orders")),
    "iggy": (*_IGGY, Question("identifier", "Stream and topic", "telemetry/orders")),
    "kinesis": (_REGION, Question("identifier", "Stream", "orders")),
    "kafka": (_KAFKA, Question("identifier", "Topic", "orders")),
    "file_system": (Question("identifier", "Path or glob", "in/*.json"), Question("format", "Format", "json")),
    "rate": (Question("rows_per_second", "Rows a second", "10"),),
}
SINKS: Mapping[str, tuple[Question, ...]] = {
    "console": (),
    "jetstream": (_SERVERS, Question("identifier", "Subject", "copies.orders")),
    "nats": (_SERVERS, Question("identifier", "Subject", "copies.orders")),
    "s2": (_BASIN, Question("identifier", "Stream", "copies")),
    "iggy": (*_IGGY, Question("identifier", "Stream and topic", "telemetry/copies")),
    "kinesis": (_REGION, Question("identifier", "Stream", "copies")),
    "kafka": (_KAFKA, Question("identifier", "Topic", "copies")),
    "parquet": (Question("identifier", "Folder", "out"),),
}
# What records may be, and what must be asked for each. Without an answer, a line is left out.
RECORDS: Mapping[str, tuple[Question, ...]] = {
    "json": (Question("schema", "Their columns, such as 'id BIGINT, amount DOUBLE' (empty: any)", ""),),
    "csv": (Question("schema", "Their columns, such as 'id BIGINT, amount DOUBLE'", "id BIGINT, amount DOUBLE"),),
    "avro": (Question("schema_registry_url", "Address of the schema registry", "http://localhost:8081"),),
    "protobuf": (
        Question("schema_registry_url", "Address of the schema registry", "http://localhost:8081"),
        Question("message", "Name of the message", "shop.Order"),
    ),
    "text": (),
    "raw": (),
}
# Numbers are written without quotes.
_NUMBERS = ("rows_per_second",)
_SECRETS = {"iggy": 'password = { env = "IGGY_PASSWORD" }', "s2": 'access_token = { env = "S2_ACCESS_TOKEN" }'}


def text(
    key: str,
    source: tuple[str, Mapping[str, str]],
    sink: tuple[str, Mapping[str, str]],
    records: tuple[str, Mapping[str, str]] | None,
) -> str:
    """A file that passes `penstock check`. `records`: what they are, with answers; None leaves them as they are."""
    lines = [f'key = "{key}"', "", *_table("[source]", *source)]
    if records is not None:
        lines += ["", *_table("[source.input_schema]", *records)]
        lines += ["", "# [[transforms]]", '# sql = "SELECT * FROM input"']
    lines += ["", *_table("[[sinks]]", *sink)]
    if records is not None:
        lines += ["", "[errors]", 'mode = "fail"  # or skip, or dead_letter with a [errors.sink]']
    return "\n".join([*lines, ""])


def _table(head: str, kind: str, answers: Mapping[str, str]) -> list[str]:
    lines = [head, f'type = "{kind}"']
    lines += [f"{key} = {value if key in _NUMBERS else _quoted(value)}" for key, value in answers.items() if value]
    return [*lines, _SECRETS[kind]] if kind in _SECRETS else lines


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
