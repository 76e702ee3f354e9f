"""The documentation is run: code blocks, their output, and the tables that derive from declarations."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import iggy_servers
from nats_servers import Admin
from penstock.cli import app
from penstock.cli.demo import publish
from penstock.connectors import FORMATS
from penstock.operate.declared.files import load as load_declared
from penstock.pipelines.load import load
from penstock.pipelines.runner import Runner, State
from penstock.pipelines.schema import json_schema
from penstock.testing.nats_server import NatsServer
from penstock.testing.s2_lite import S2Lite
from projects import DECLARATIVE, files
from s2_servers import S2Admin

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Their first block is a whole program, with a server of its own, and the next one is what it prints.
PROGRAMS = [ROOT / "README.md", ROOT / "docs" / "schemas.md", ROOT / "docs" / "whole-job.md"]
# The files of its project are run in tests/spark/test_declarative.py.
PROJECTS = [DECLARATIVE]
PIPELINES = ROOT / "docs" / "pipelines.md"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PROGRAMS, ids=lambda page: page.name)
def test_a_whole_program_prints_what_its_page_says(page: Path) -> None:
    code, said = blocks(page, "python")[0], blocks(page, "text")[0]
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert ran.stdout.strip() == said.strip(), ran.stderr[-2000:]


def timeless(said: str) -> tuple[list[str], list[str]]:
    """What a command printed: its lines with a time, without it, and all others. Two processes print them."""
    stamp = re.compile(r"^\d\d:\d\d:\d\d ")
    lines = [line.rstrip() for line in said.strip().splitlines()]
    return [stamp.sub("", line) for line in lines if stamp.match(line)], [
        line for line in lines if line and not stamp.match(line)
    ]


def test_the_first_pipeline_prints_what_its_page_says(tmp_path: Path) -> None:
    subprocess.run(["sh", "-c", blocks(PIPELINES, "sh")[0]], cwd=tmp_path, check=True)
    (tmp_path / "orders.toml").write_text(blocks(PIPELINES, "toml")[0])
    command = [sys.executable, "-m", "penstock.cli", "run", "orders.toml"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert timeless(ran.stdout) == timeless(blocks(PIPELINES, "text")[0]), ran.stderr[-2000:]
    assert ran.returncode == 0


def whole(block: str) -> str:
    """A block of a page with what it leaves out: a source, or a sink."""
    given = tomllib.loads(block)
    if "type" not in given.get("source", {}):
        block += '\n[source]\ntype = "rate"\n'
    return block if "sinks" in given or "streams" in given else f'{block}\n[[sinks]]\ntype = "console"\n'


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "toml")], ids=lambda page: page.name)
def test_every_pipeline_of_a_page_passes_check_and_its_json_schema(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("IGGY_PASSWORD", "NATS_URL", "KAFKA_JAAS", "REGISTRY_PASSWORD"):
        monkeypatch.setenv(name, "x")
    (tmp_path / "nats.token").write_text("x")
    schema = Draft202012Validator(json_schema())
    for number, block in enumerate(blocks(page, "toml")):
        file = tmp_path / f"block-{number}.toml"
        if re.search(r"^\[(streams|buckets)\.", block, re.MULTILINE):  # declared streams, and no pipeline
            file.write_text(block)
            assert load_declared([file]).streams
            continue
        file.write_text(whole(block))
        (pipeline,) = load([file])
        assert pipeline.guarantee()
        assert not [error.message for error in schema.iter_errors(tomllib.loads(file.read_text()))], block


def test_check_shows_the_guarantee_that_the_page_shows(tmp_path: Path) -> None:
    (tmp_path / "orders.toml").write_text(blocks(PIPELINES, "toml")[1])
    ran = CliRunner().invoke(app, ["check", str(tmp_path / "orders.toml")])
    assert ran.output.strip() == blocks(PIPELINES, "text")[1].strip()


@pytest.mark.parametrize(
    ("page", "number"), [(ROOT / "README.md", 0), (PIPELINES, 1)], ids=lambda page: str(page)[-12:]
)
def test_a_pipeline_from_jetstream_does_what_its_page_says(
    page: Path, number: int, spark: SparkSession, tmp_path: Path
) -> None:
    said: list[str] = []
    with NatsServer() as server:
        publish(server.url, 1000)
        admin = Admin(server.url)
        for name in ("large", "dead"):
            admin.create(name.upper(), f"{name}.>")
        if page is PIPELINES:
            admin.publish([("orders.eu", b"oops")])
        text = blocks(page, "toml")[number].replace("nats://127.0.0.1:4222", server.url)
        text += "" if "servers" in text else f'\n[jetstream]\nservers = "{server.url}"\n'
        text += "" if "[trigger]" in text else "\n[trigger]\navailable_now = true\n"
        file = tmp_path / "orders.toml"
        file.write_text(text)
        (went,) = Runner(spark, load([file]), said.append).run()
        assert went.state is State.DONE, went.error
        counts = [admin.calls.stream(name).last for name in ("LARGE", "DEAD")]
    if page is PIPELINES:
        rows = spark.read.parquet(str(tmp_path / "orders"))
        assert (rows.count(), counts) == (1000, [rows.where("amount >= 400").count(), 1])
        assert {row.region for row in rows.select("region").distinct().collect()} == {"ap", "eu", "sa", "us"}
    else:
        assert said == timeless(blocks(page, "text")[1])[0]
        rows = spark.read.parquet(str(tmp_path / "large-orders"))
        assert rows.columns == ["id", "amount", "subject"]
        assert 0 < rows.count() < 1000


def test_every_excerpt_is_in_the_file_that_it_names() -> None:
    """Above an excerpt stands the name of its file, as a link; `...` stands for what is left out."""
    page = ROOT / "docs" / "add-a-connector.md"
    named = re.findall(r"^\[`[^`\n]+`\]\(([^)]+)\):\n\n```\w+\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    assert len(named) == len(re.findall(r"^```", page.read_text(), re.MULTILINE)) // 2 > 5
    for file, excerpt in named:
        text, at = _lines((page.parent / file).read_text()), 0
        for piece in map(_lines, re.split(r"^ *\.\.\.\n", excerpt, flags=re.MULTILINE)):
            found = text.find(piece, at)
            assert found >= 0, f"{file} does not have:\n{piece}"
            at = found + len(piece)


def _lines(code: str) -> str:
    """Without what a formatter changes in an excerpt: indentation and empty lines."""
    return "\n".join(line.strip() for line in code.splitlines() if line.strip())


def test_every_guarantee_names_tests_that_exist() -> None:
    declared = tomllib.loads((ROOT / "docs" / "guarantees.toml").read_text())
    for fault in (*declared["fault"], *declared["pipeline"]):
        assert fault["tests"], f"nothing shows what happens when: {fault['what']}"
        for test in fault["tests"]:
            file, _, name = test.partition("::")
            assert re.search(rf"^ *def {name}\(", (ROOT / file).read_text(), re.MULTILINE), f"there is no test {test}"


def test_the_tables_of_a_format_show_no_test_of_another_without_saying_so() -> None:
    declared = tomllib.loads((ROOT / "docs" / "guarantees.toml").read_text())
    for beginning, formats in declared["runs_with"].items():
        assert set(formats) <= set(FORMATS)
        assert any(test.startswith(beginning) for fault in declared["fault"] for test in fault["tests"]), beginning
    pages = re.split(
        r"^## (?:Reading|Writing) `(\w+)`$", (ROOT / "docs" / "guarantees.md").read_text(), flags=re.MULTILINE
    )
    for name, tables in zip(pages[1::2], pages[2::2], strict=True):
        for file, said in re.findall(r"\]\(\.\./([\w/.]+)\)( \(with)?", tables):
            mine = re.search(r"/test_(s2|iggy|core|kinesis)", file)
            assert said or not mine or mine[1].replace("core", "nats") == name, f"{name} shows a test in {file}"


def test_every_format_says_what_happens_both_ways() -> None:
    declared = tomllib.loads((ROOT / "docs" / "guarantees.toml").read_text())["fault"]
    covered = {(name, fault["way"]) for fault in declared for name in fault["formats"]}
    assert covered == {(name, way) for name in FORMATS for way in ("read", "write")}


@pytest.fixture
def orders(nats: NatsServer, admin: Admin) -> Any:
    admin.create("ORDERS", "orders.>")
    admin.create("COPIES", "copy.>")
    admin.publish((f"orders.{region}.{i}", b"{}") for i in range(10) for region in ("eu", "us"))
    yield nats
    for name in ("ORDERS", "COPIES"):
        admin.delete(name)
    if admin.calls.streams(["SENSORS"])["SENSORS"] is not None:
        admin.delete("SENSORS")


@pytest.fixture(scope="module")
def s2_orders() -> Iterator[S2Lite]:
    with S2Lite(basin="my-basin") as running:
        admin = S2Admin(running)
        admin.make("orders/eu")
        admin.append("orders/eu", [b"{}"] * 20)
        yield running


@pytest.fixture(scope="module")
def iggy_orders(iggy: iggy_servers.Server) -> dict[str, str]:
    admin = iggy_servers.IggyAdmin(iggy)
    admin.make("telemetry", "orders", 2)
    for partition in range(2):
        admin.send("telemetry", "orders", [b'{"user": "u%d"}' % (i % 3) for i in range(10)], partition)
    return iggy_servers.options(iggy)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_a_page_runs(
    page: Path,
    orders: NatsServer,
    s2_orders: S2Lite,
    iggy_orders: dict[str, str],
    spark: SparkSession,
    tmp_path: Path,
    admin: Admin,
) -> None:
    """One page, one namespace. Blocks have a session, and the default address is the test's server."""
    names: dict[str, Any] = {"spark": spark}
    text = page.read_text()
    ran = 0
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        here = block.replace("nats://127.0.0.1:4222", orders.url).replace("/tmp/", f"{tmp_path}/")
        for name in ("jetstream", "nats"):
            here = here.replace(f'format("{name}")', f'format("{name}").option("servers", "{orders.url}")')
        here = here.replace('format("s2")', f'format("s2").option("endpoint", "{s2_orders.url}")')
        reach = "".join(f'.option("{key}", "{value}")' for key, value in iggy_orders.items())
        here = here.replace('format("iggy")', f'format("iggy"){reach}')
        here = here.replace("basin 'my-basin'", f"basin 'my-basin', endpoint '{s2_orders.url}'")
        is_program = language == "python" and page in PROGRAMS and block == blocks(page, "python")[0]
        if is_program or (page in PROJECTS and block in files(page).values()):
            ran += 1  # in a test of its own
        elif language == "python":
            exec(compile(here, str(page), "exec"), names)
            ran += 1
        elif language == "sql":
            for statement in filter(None, (part.strip() for part in here.split(";"))):
                spark.sql(statement).collect()
                ran += 1
    if "query" in names:
        names["query"].awaitTermination()
        assert sum(p.numInputRows for p in names["query"].recentProgress) == 20
    if page.name == "jetstream.md":  # it copies all orders twice, and none of them back
        assert [admin.calls.stream(name).last for name in ("ORDERS", "COPIES")] == [20, 40]
    if page.name == "operating.md":  # all orders, and those of Europe
        assert admin.calls.stream("COPIES").last == 30
    if "orders" in names:
        assert "sequence" in names["orders"].columns
    for table in ("orders", "changes", "order_messages"):
        spark.sql(f"DROP TABLE IF EXISTS {table}")
    # Whatever has a block and ran nothing would be a page that is not tested.
    assert ran or not re.search(r"^```(python|sql)", text, re.MULTILINE)


def test_generated_tables_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_module_has_its_place_in_the_architecture() -> None:
    page, source = (ROOT / "docs" / "architecture.md").read_text(), ROOT / "src" / "penstock"
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for file in sorted(source.rglob("*.py")):
        *folders, name = file.relative_to(source).parts
        inner = f"`{folders[-1]}/`" if len(folders) > 1 or folders[:1] in (["testing"], ["cli"]) else ""
        said = [row for row in rows if row.startswith(f"| {inner}")]
        known = any(f"`{name}`" in row or f"`{'/'.join(folders[1:])}/{name}`" in row for row in said or rows)
        assert known or name in ("__init__.py", "__main__.py"), f"nothing is said of {file.relative_to(ROOT)}"
    for named in re.findall(r"`(\w+\.py)`", "".join(rows)):
        assert next(source.rglob(named), None), f"there is no {named}"


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", page.read_text()):
            to = page.parent / target if target else page
            assert to.exists(), f"{page.name} links to {target}"
            assert not anchor or anchor in anchors(to), f"{page.name} links to {target}#{anchor}"


def test_peek_shows_the_newest_records_without_spark(orders: NatsServer) -> None:
    ran = CliRunner().invoke(app, ["peek", "jetstream", f"servers={orders.url}", "stream=ORDERS", "-n", "3"])
    assert ran.exit_code == 0, ran.output
    assert "orders.us.9" in ran.output
    assert "orders.eu.0" not in ran.output
    code = "import penstock.cli, penstock.cli.peek, sys; sys.exit('py4j.java_gateway' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)


def test_peek_answers_a_mistake_with_a_sentence(orders: NatsServer) -> None:
    ran = CliRunner().invoke(app, ["peek", "jetstream", f"servers={orders.url}", "stream=ORDER"])
    assert ran.exit_code == 1
    assert "stream 'ORDER' does not exist. Did you mean 'ORDERS'" in " ".join(ran.output.split())
    assert "Traceback" not in ran.output
    assert "is no option" in CliRunner().invoke(app, ["peek", "jetstream", "ORDERS"]).output


def test_describe_lists_connectors_and_options() -> None:
    assert "jetstream" in CliRunner().invoke(app, ["describe"]).output
    ran = CliRunner().invoke(app, ["describe", "jetstream"])
    assert "startingOffsets" in ran.output
    for command in ("describe", "peek"):
        said = " ".join(CliRunner().invoke(app, [command, "jetstrem"]).output.split())
        assert "there is no connector 'jetstrem'. Did you mean 'jetstream'?" in said
    said = " ".join(CliRunner().invoke(app, ["describe", "kafka"]).output.split())
    assert "There are: iggy, jetstream, journal, kinesis, nats, s2." in said


def test_a_missing_java_is_one_sentence(tmp_path: Path) -> None:
    env = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-m", "penstock.cli", "demo"], capture_output=True, text=True, env=env, check=False
    )
    assert ran.returncode == 1
    assert "there is no Java on the PATH. Spark needs a JDK 17 or 21." in " ".join(ran.stderr.split())
    assert "Traceback" not in ran.stderr


def test_the_demo_reads_every_order_once() -> None:
    command = [sys.executable, "-m", "penstock.cli", "demo", "--records", "20000", "--master", "local[2]"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert "20,000 published, 20,000 read, 0 twice" in ran.stdout, ran.stdout + ran.stderr
    assert ran.returncode == 0
