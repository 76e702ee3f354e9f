"""A topic of Kafka as messages of a stream: what a copied record looks like, and the files that copy it. Pure; what is
written here in SQL for the pipeline is read back by `record` for the proof.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.clients.nats.subjects import problem
from penstock.errors import OptionError
from penstock.kit.masking import is_secret
from penstock.operate.declared.writing import table

TOPIC, PARTITION, OFFSET, TIME = "kafka-topic", "kafka-partition", "kafka-offset", "kafka-timestamp"
KEY, KEY_64, NULL, HEADER = "kafka-key", "kafka-key-base64", "kafka-null", "kafka-header"
# Keys longer than this become a checksum in a subject: a server takes 4,096 bytes for a subject and all around it.
LONG_KEY = 200
_NO_VALUE = "-"  # no base64: the value of a header that has none
Headers = list[tuple[str, bytes | None]]


class Copy(NamedTuple):
    """How a topic is copied."""

    topic: str
    stream: str
    prefix: str  # of its subjects
    by_key: bool = False

    @property
    def subjects(self) -> list[str]:
        """What the stream takes."""
        return [f"{self.prefix}.*"]


def copies(topics: Sequence[str], *, by_key: bool = False, name: str | None = None) -> list[Copy]:
    """How to copy these topics, one stream each. An OptionError for what is no topic, or where two would be one."""
    found: dict[str, Copy] = {}
    for topic in dict.fromkeys(topics):
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic) or topic in (".", ".."):
            raise OptionError(f"'{topic}' is no topic of Kafka: letters, digits, '.', '_' and '-' only.")
        prefix = topic if problem(topic, wildcards=False) is None else topic.replace(".", "_")
        stream = name if name and len(topics) == 1 else "_".join(filter(None, (name, topic.replace(".", "_"))))
        if stream in found or any(prefix == other.prefix for other in found.values()):
            raise OptionError(f"the topics '{topic}' and '{found[stream].topic}' would both be copied to '{stream}'.")
        found[stream] = Copy(topic, stream, prefix, by_key)
    return list(found.values())


def pipeline(
    copy: Copy,
    brokers: str,
    servers: str,
    settings: Mapping[str, str] | None = None,
    reach: Mapping[str, str] | None = None,
) -> str:
    """The pipeline file. `settings` are Kafka's own, `kafka.*`, and `reach` is what the connection to NATS needs."""
    of_kafka = {"kafka.isolation.level": "read_committed"} | dict(settings or {})
    lines = [
        f"# Copies the topic '{copy.topic}' of Kafka into the stream '{copy.stream}', exactly once and in order by",
        "# partition. Each message has where it comes from in its headers, and topic/partition/offset as its id. The",
        "# checkpoint has how far it is: stop it and start it again as you like.",
        *_pairs({"key": f"kafka-{copy.stream}"}),
        "",
        "[source]",
        *_pairs({"type": "kafka", "bootstrap_servers": brokers, "identifier": copy.topic}),
        *_pairs({"initial_offset": "earliest"}),
        "",
        "[source.properties]",
        *_pairs(of_kafka),
        "",
        "[[transforms]]",
        "# A record without a value, which deletes its key, is an empty message with a header.",
        *_pairs({"sql": _TRANSFORM}),
        "",
        "[routing]",
        *_pairs({"subject": subject_sql(copy), "id": _ID, "headers": headers_sql()}),
        "",
        "[[sinks]]",
        *_pairs({"type": "jetstream", "servers": servers} | dict(reach or {})),
        "",
    ]
    return "\n".join(lines)


def _pairs(values: Mapping[str, Any]) -> list[str]:
    """Lines of TOML. A secret is not written down: the file says which variable has it."""
    said = {name: {"env": variable(name)} if _hides(name) else value for name, value in values.items()}
    return table(("",), said).split("\n")[1:-1]


def _hides(name: str) -> bool:
    return is_secret(name) and not name.lower().endswith(("file", "location"))


def variable(name: str) -> str:
    """The environment variable that has the value of a secret option: passwordFile is none, password is one."""
    words = re.sub(r"[^A-Za-z0-9]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)).upper()
    return words if words.startswith("KAFKA_") else f"NATS_{words}"


_TRANSFORM = (
    "SELECT * EXCEPT (value), coalesce(value, CAST('' AS BINARY)) AS value, value IS NULL AS is_null FROM input"
)
_ID = "concat_ws('/', topic, string(partition), string(offset))"


def subject_sql(copy: Copy) -> str:
    """SQL: the subject of a record."""
    if not copy.by_key:
        return f"concat('{copy.prefix}.', string(partition))"
    return (
        f"concat('{copy.prefix}.', CASE WHEN key IS NULL THEN '~none' "
        f"WHEN octet_length(key) > {LONG_KEY} THEN concat('~sha256-', sha2(key, 256)) "
        "WHEN CAST(key AS STRING) RLIKE '^[A-Za-z0-9_=-]+$' THEN CAST(key AS STRING) "
        "ELSE concat('~', lower(hex(key))) END)"
    )


def subject(copy: Copy, partition: int, record_key: bytes | None) -> str:
    """The same in Python."""
    if not copy.by_key:
        return f"{copy.prefix}.{partition}"
    if record_key is None:
        return f"{copy.prefix}.~none"
    if len(record_key) > LONG_KEY:
        return f"{copy.prefix}.~sha256-{hashlib.sha256(record_key).hexdigest()}"
    if re.fullmatch(rb"[A-Za-z0-9_=-]+", record_key):
        return f"{copy.prefix}.{record_key.decode()}"
    return f"{copy.prefix}.~{record_key.hex()}"


def headers_sql() -> str:
    """SQL: the headers of a message: those of the record, and where it comes from. A header that NATS could not carry,
    or would obey, is put into one of ours.
    """
    plain = (
        "h.value IS NOT NULL AND h.key RLIKE '^[!-9;-~]+$' AND NOT lower(h.key) RLIKE '^(nats|kafka)-' AND NOT "
        "CAST(h.value AS STRING) RLIKE '[^ -~]|^ | $'"
    )
    packed = f"concat(base64(CAST(h.key AS BINARY)), ':', coalesce(base64(h.value), '{_NO_VALUE}'))"
    of_record = (
        f"transform(coalesce(headers, array()), h -> if({plain}, named_struct('key', h.key, 'value', h.value), "
        f"named_struct('key', '{HEADER}', 'value', CAST({packed} AS BINARY))))"
    )
    is_text = "NOT CAST(key AS STRING) RLIKE '[^ -~]|^ | $|^$'"
    own = [
        _field(TOPIC, "topic"),
        _field(PARTITION, "string(partition)"),
        _field(OFFSET, "string(offset)"),
        _field(TIME, "string(unix_millis(timestamp))", "timestamp IS NOT NULL"),
        _field(KEY, "key", f"key IS NOT NULL AND {is_text}"),
        _field(KEY_64, "base64(key)", f"key IS NOT NULL AND NOT ({is_text})"),
        _field(NULL, "'true'", "is_null"),
    ]
    return f"concat({of_record}, array_compact(array({', '.join(own)})))"


def _field(name: str, value: str, condition: str = "") -> str:
    made = f"named_struct('key', '{name}', 'value', CAST({value} AS BINARY))"
    return f"if({condition}, {made}, NULL)" if condition else made


def headers(topic: str, partition: int, offset: int, millis: int, record: "Record") -> list[tuple[str, bytes]]:
    """The same in Python, as the pipeline writes them."""
    found: list[tuple[str, bytes]] = []
    for name, value in record.headers:
        fits = value is not None and re.fullmatch(rb"(?:[!-~]([ -~]*[!-~])?)?", value)
        if value is not None and fits and re.fullmatch(r"[!-9;-~]+", name) and not _is_ours(name):
            found.append((name, value))
        else:
            packed = base64.b64encode(value).decode() if value is not None else _NO_VALUE
            found.append((HEADER, f"{base64.b64encode(name.encode()).decode()}:{packed}".encode()))
    found += [(TOPIC, topic.encode()), (PARTITION, b"%d" % partition), (OFFSET, b"%d" % offset)]
    found.append((TIME, b"%d" % millis))
    if record.key is not None:
        is_text = re.fullmatch(rb"[!-~]([ -~]*[!-~])?", record.key)
        found.append((KEY, record.key) if is_text else (KEY_64, base64.b64encode(record.key)))
    return found + ([(NULL, b"true")] if record.value is None else [])


def _is_ours(name: str) -> bool:
    return re.match(r"(nats|kafka)-", name.lower()) is not None


class Record(NamedTuple):
    """What a record is, apart from its place."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    millis: int

    def checksum(self) -> int:
        """64 bits of all of it, as a signed number."""
        digest = hashlib.blake2b(digest_size=8)
        parts = [self.key, self.value, b"%d" % self.millis]
        for name, value in self.headers:
            parts += [name.encode(), value]
        for part in parts:
            digest.update(b"- " if part is None else b"%d " % len(part) + part)
        return int.from_bytes(digest.digest(), "big", signed=True)


class Placed(NamedTuple):
    """A record, and where it was in Kafka."""

    partition: int
    offset: int
    record: Record


def record(topic: str, pairs: Iterable[tuple[str, bytes]], body: bytes) -> Placed | None:
    """The record of a message that was copied from this topic; None for any other message."""
    ours: dict[str, bytes] = {}
    others: Headers = []
    for name, value in pairs:
        if name == HEADER:
            unpacked = _unpacked(value)
            if unpacked is None:
                return None
            others.append(unpacked)
        elif name in (TOPIC, PARTITION, OFFSET, TIME, KEY, KEY_64, NULL):
            ours[name] = value
        elif name.lower() != "nats-msg-id":
            others.append((name, value))
    try:
        partition, offset = int(ours[PARTITION]), int(ours[OFFSET])
        millis = int(ours.get(TIME, b"-1"))
        record_key = ours.get(KEY) if KEY in ours else _decoded(ours[KEY_64]) if KEY_64 in ours else None
    except (KeyError, ValueError):
        return None
    if ours.get(TOPIC) != topic.encode():
        return None
    return Placed(partition, offset, Record(record_key, None if NULL in ours else body, others, millis))


def _unpacked(text: bytes) -> tuple[str, bytes | None] | None:
    name, _, value = text.partition(b":")
    try:
        return _decoded(name).decode(), None if value == _NO_VALUE.encode() else _decoded(value)
    except ValueError:
        return None


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None


def declaration(found: Sequence[Copy], *, storage: str = "file", replicas: int = 1, max_age: str | None = None) -> str:
    """The declaration of the streams."""
    blocks = ["# Streams for topics of Kafka. max_age, if there is one, counts from the moment of copying.\n"]
    for copy in found:
        config: dict[str, Any] = {
            "description": f"copy of the Kafka topic {copy.topic}",
            "subjects": copy.subjects,
            "storage": storage,
            "num_replicas": replicas,
        }
        config |= {"max_age": max_age} if max_age else {}
        blocks.append(table(("streams", copy.stream), config | {"duplicate_window": "2m", "allow_direct": True}))
    return "\n".join(blocks)
