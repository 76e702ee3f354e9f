"""Jars that tests need, fetched once by Maven and kept in the user's cache. Knows nothing of what is in them."""

import fcntl
import functools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from penstock.errors import ConnectError, OptionError

COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock</groupId><artifactId>{name}</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
DEPENDENCY = """
    <dependency>
      <groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version>{form}{rest}
    </dependency>"""
FORM = "<classifier>{3}</classifier><type>{4}</type>"
ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


class NoMavenError(OptionError):
    """The jars are not in the cache, and there is nothing to fetch them with."""


def jars(name: str, coordinates: Sequence[str], *, whose: str, why: str, transitive: bool = True) -> list[Path]:
    """The jars of these `group:artifact:version`, with what they depend on, or, if not `transitive`, alone. Files that
    are no jars have a classifier and a type behind that, such as `:all:tar.gz`.

    `name` is their folder in the cache, and has a version in it: what is there is not fetched again. `whose` they are,
    such as "Kafka's", and `why` they are fetched is said to the user.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock" / name
    folder = cache / "lib"
    if not folder.exists():
        maven = shutil.which("mvn")
        if maven is None:
            raise NoMavenError(
                f"{whose} jars are not here, nor mvn to fetch them with. Install Maven (Debian: apt-get install maven; "
                "macOS: brew install maven)"
            )
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # whoever comes second waits, and finds them
            if not folder.exists():
                (cache / "pom.xml").write_text(pom(name, coordinates, transitive=transitive))
                _fetch(maven, cache, folder, f"{whose} jars {why}")
    return sorted(folder.iterdir())


def pom(name: str, coordinates: Sequence[str], *, transitive: bool) -> str:
    """The project that Maven is asked about: it has these dependencies, and nothing else."""
    rest = "" if transitive else ALONE
    dependencies = []
    for words in (coordinate.split(":") for coordinate in coordinates):
        form = FORM.format(*words) if len(words) > 3 else ""
        dependencies.append(DEPENDENCY.format(*words, form=form, rest=rest))
    return POM.format(name=name, dependencies="".join(dependencies))


def _fetch(maven: str, cache: Path, folder: Path, what: str) -> None:
    say = functools.partial(print, file=sys.stderr, flush=True)
    say(f"fetching {what}, with mvn into {cache}, once: some 10 to 30 seconds")
    began = time.monotonic()
    partial = cache / "partial"  # of a fetch that was interrupted, some jars may be there
    shutil.rmtree(partial, ignore_errors=True)
    command = [maven, "-B", "-q", "-f", str(cache / "pom.xml"), COPY]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if ran.returncode:
        raise ConnectError(f"mvn could not fetch {what}: {ran.stdout[:1000]}")
    partial.rename(folder)
    say(f"fetched, in {time.monotonic() - began:.0f} seconds")
