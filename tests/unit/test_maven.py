"""Jars in the cache: fetched once, whole or not at all. With a program of ours in the place of mvn."""

import concurrent.futures
from pathlib import Path

import pytest

from penstock.errors import ConnectError
from penstock.testing import maven
from penstock.testing.kafka import KafkaBroker, NoKafkaError, spark_kafka_jars

COPIES = 'for word; do case $word in -DoutputDirectory=*) out=${word#*=};; esac; done; mkdir "$out"; > "$out/a.jar"'


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a line for each call of mvn, which `becomes` puts on the path."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    (tmp_path / "bin").mkdir()
    return tmp_path / "calls"


def becomes(calls: Path, script: str) -> None:
    mvn = calls.parent / "bin" / "mvn"
    mvn.write_text(f"#!/bin/sh\necho called >> {calls}\n{script}\n")
    mvn.chmod(0o755)


def fetched() -> list[Path]:
    return maven.jars("things-1", ["group:things:1"], whose="Their", why="to test")


def test_jars_are_fetched_once_whoever_asks(calls: Path, capfd: pytest.CaptureFixture[str]) -> None:
    becomes(calls, f"sleep 0.2; {COPIES}")
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        found = [job.result() for job in [pool.submit(fetched) for _ in range(3)]]
    assert found == [[calls.parent / "cache" / "penstock" / "things-1" / "lib" / "a.jar"]] * 3
    assert calls.read_text() == "called\n"
    assert "fetching Their jars to test, with mvn" in capfd.readouterr().err


def test_a_fetch_that_failed_leaves_nothing_that_the_next_would_take_for_whole(calls: Path) -> None:
    becomes(calls, f"{COPIES}; echo no such artifact; exit 1")
    with pytest.raises(ConnectError, match=r"mvn could not fetch Their jars to test: no such artifact"):
        fetched()
    becomes(calls, COPIES.replace("a.jar", "b.jar"))
    assert [jar.name for jar in fetched()] == ["b.jar"]


def test_without_mvn_it_is_said_what_to_install(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = calls.parent / "bin" / "java"
    java.touch(0o755)
    monkeypatch.setenv("PATH", str(java.parent))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    for ask in (spark_kafka_jars, KafkaBroker):
        with pytest.raises(NoKafkaError, match=r"Kafka's jars are not here, nor mvn .* Install Maven"):
            ask()
    java.unlink()
    with pytest.raises(NoKafkaError, match=r"no Java is here to run Kafka with\. Install a JDK"):
        KafkaBroker()


def test_jars_alone_come_without_what_they_depend_on() -> None:
    assert "<exclusion>" in maven.pom("x", ["g:a:1"], transitive=False)
    whole = maven.pom("x", ["g:a:1", "g:b:2"], transitive=True)
    assert "<exclusion>" not in whole
    assert "<artifactId>b</artifactId><version>2</version>" in whole
