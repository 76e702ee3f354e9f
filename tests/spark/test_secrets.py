"""Every secret of every format against every place where Spark shows options, in a session that nobody prepared."""

import base64
import html
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nkeys
import pytest
from pyspark.sql import SparkSession

import iggy_servers
import penstock
import s2_servers
from nats_servers import Admin
from penstock.connectors import FORMATS, connector
from penstock.options import alias, secrets, shown
from penstock.spark.connector import HIDDEN
from penstock.spark.session import HIDES, REDACTION, hide_secrets
from penstock.testing.nats_server import NatsServer, free_port
from penstock.testing.s2_lite import S2Lite

if TYPE_CHECKING:
    from kinesis_servers import Kinesis

PROGRAM = Path(__file__).with_name("secrets_program.py")
LEAN = Path(penstock.__file__).parent / "spark" / "lean"  # only lets Spark's Python processes start sooner
SEED = nkeys.encode_seed(b"0123456789abcdef0123456789abcdef", nkeys.PREFIX_BYTE_USER).decode()
# Every option of every format that is secret, as it is documented; and those with another name of old, marked.
SECRETS = [
    (name, field, marked)
    for name in FORMATS
    for field in sorted(secrets(connector(name).options_type) | secrets(connector(name).sink_options_type))
    for marked in (False, True)
    if not marked or shown(connector(name).options_type, field) != alias(field)
]
CONTROL = "c0ntrol-shown"  # the value of an option that is no secret: it must be found, or nobody looked


def value(name: str, field: str, marked: bool) -> str:
    """A valid one, with a word that occurs nowhere else."""
    word = needle(name, field, marked)
    if field == "nkey_seed":
        return SEED
    if field == "credentials":
        return f"-----BEGIN\n{word}\n------\n-----\n{SEED}\n------"
    return word


def needle(name: str, field: str, marked: bool) -> str:
    word = f"{name}x{field.replace('_', '')}x{'marked' if marked else 'plain'}"
    if field == "nkey_seed":
        return SEED[:40]
    if field == "credentials":
        return f"eyJh.{word}.c2ln"
    return base64.b64encode(word.ljust(32, "x").encode()).decode() if field == "encryption_key" else f"hunter2{word}"


@pytest.fixture(scope="module")
def seen(
    nats: NatsServer,
    s2: "S2Lite | s2_servers.Cloud",
    iggy: iggy_servers.Server,
    kinesis: "Kinesis",
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, str]]:
    """All that Spark shows, by place."""
    folder = tmp_path_factory.mktemp("secrets")
    admin = Admin(nats.url)
    admin.create("SECRETS", "secrets.>")
    admin.numbers("SECRETS", 3, subject="secrets.n")
    admin.close()
    s2_servers.S2Admin(s2).make("secrets")
    iggy_servers.IggyAdmin(iggy).make("secrets", "orders", 1)
    kinesis.make("secrets")
    keyed = kinesis.options("secrets") | {"accessKeyId": "testing"}
    reach = {key: value for key, value in iggy_servers.options(iggy).items() if key != "passwordFile"}
    written = {"servers": nats.url, "subject": "secrets.x", "connectionName": CONTROL}
    places = {
        "jetstream": ({"servers": nats.url, "stream": "SECRETS", "connectionName": CONTROL}, written),
        "nats": ({"servers": nats.url, "subjects": "secrets.>"}, written),
        "s2": ({**s2.options(), "streams": "secrets"}, {**s2.options(), "stream": "secrets"}),
        "iggy": ({**reach, "stream": "secrets", "topic": "orders"}, {**reach, "stream": "secrets", "topic": "orders"}),
        "kinesis": (keyed, keyed),
    }
    assert set(places) == {name for name, _, _ in SECRETS}
    cases = []
    for name, (source, sink) in places.items():
        for marked in (False, True):
            fields = [field for form, field, is_marked in SECRETS if (form, is_marked) == (name, marked)]
            if not fields:
                continue
            model = connector(name).options_type
            secret = {
                alias(field) if marked else shown(model, field): "secret:" * marked + value(name, field, marked)
                for field in fields
            }
            files = {f"{alias(fields[0])}File": str(folder / "file")}
            called = f"{name}_{'marked' if marked else 'plain'}"
            cases.append(
                {"name": called, "format": name, "source": source, "sink": sink, "secret": secret, "files": files}
            )
    (folder / "file").write_text(SEED)
    told = {"folder": str(folder), "port": free_port(), "cases": cases, "control": CONTROL}
    with (folder / "output.log").open("wb") as log:
        ran = subprocess.run(
            [sys.executable, str(PROGRAM), json.dumps(told)],
            stdout=log,
            stderr=log,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(LEAN), os.environ.get("PYTHONPATH", "")])},
            check=False,
        )
    assert ran.returncode == 0, (folder / "output.log").read_text()[-3000:]
    texts = {path.stem: html.unescape(path.read_text()) for path in (folder / "shown").iterdir()}
    texts["output"] = (folder / "output.log").read_text()
    for kind in ("events", "checkpoints", "warehouse"):
        files = [path.read_bytes().decode("latin-1") for path in (folder / kind).rglob("*") if path.is_file()]
        texts[kind] = "\n".join(files)
    yield texts
    admin = Admin(nats.url)
    admin.delete("SECRETS")
    admin.close()


@pytest.mark.parametrize(("name", "field", "marked"), SECRETS)
def test_no_secret_shows_anywhere(seen: dict[str, str], name: str, field: str, marked: bool) -> None:
    word = needle(name, field, marked)
    assert [place for place, text in seen.items() if word in text] == []
    assert value(name, field, marked) not in seen["jvm"]


def test_what_is_no_secret_shows_in_every_place_that_was_looked_at(seen: dict[str, str]) -> None:
    found = {place for place, text in seen.items() if CONTROL in text}
    assert {"explain", "error", "table", "pages", "events", "jvm"} <= found
    assert "redacted" in seen["explain"]
    assert all(text for place, text in seen.items() if place != "warehouse")


@pytest.mark.parametrize(("name", "field", "marked"), [case for case in SECRETS if not case[2]])
def test_every_secret_has_a_name_that_spark_hides(name: str, field: str, marked: bool) -> None:
    for model in (connector(name).options_type, connector(name).sink_options_type):
        assert HIDDEN.search(shown(model, field)), "declare it with hidden_as"


@pytest.mark.parametrize(("name", "field", "marked"), [case for case in SECRETS if case[2]])
def test_a_name_that_spark_does_not_hide_is_refused_without_its_value(name: str, field: str, marked: bool) -> None:
    source = connector(name)({alias(field).lower(): "hunter2", "x": "y"})
    for way in (source.schema, lambda: source.streamWriter(_schema(), False), lambda: source.streamReader(_schema())):
        with pytest.raises(Exception, match=f"Spark would show the option '{alias(field)}'") as caught:
            way()
        assert f"Give it as '{shown(connector(name).options_type, field)}'" in str(caught.value)
        assert f"'{alias(field)}File'" in str(caught.value)
        assert "hunter2" not in str(caught.value)


def _schema() -> Any:
    from pyspark.sql.types import BinaryType, StructField, StructType

    return StructType([StructField("value", BinaryType())])


def test_a_secret_is_refused_where_spark_connect_writes_it_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "SPARK_JOB_ARTIFACT_UUID", "0b9e4a2c-0000-0000-0000-000000000000")
    source = connector("jetstream")({"password": "hunter2", "stream": "S"})
    with pytest.raises(Exception, match=r"Spark Connect writes .* not 'password' either.*'passwordFile'") as caught:
        source.schema()
    assert "hunter2" not in str(caught.value)


def test_a_prepared_session_hides_more_and_keeps_what_its_user_hides(spark: SparkSession) -> None:
    before = spark.conf.get(REDACTION)
    assert before == f"(?i)url|{HIDES}"
    try:
        spark.conf.set(REDACTION, "(?i)mine")
        hide_secrets(spark)
        hide_secrets(spark)
        assert spark.conf.get(REDACTION) == f"(?i)mine|{HIDES}"
        options = {
            "mine": "hunter2-a",
            "nkeySeed": "hunter2-b",
            "servers": "nats://u:hunter2-c@127.0.0.1:1",
            "x": "seen",
        }
        frame = spark.readStream.format("jetstream").options(**options).schema("value BINARY").load()
        plan = frame._jdf.queryExecution().toString()
        assert "hunter2" not in plan
        assert re.search(r"x=seen", plan)
    finally:
        spark.conf.set(REDACTION, before)
