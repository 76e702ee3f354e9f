"""The Spark application that pipelines run in: one session with what their files ask for. Knows Spark; no servers."""

import contextlib
import logging
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.errors import OptionError
from penstock.pipelines.pipeline import End, Pipeline
from penstock.spark.session import REDACTION, hide_secrets, local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Whether a Spark Connect server adds its stack of calls to each error.
SERVERS_STACK = "spark.sql.connect.serverStacktrace.enabled"
PACKAGES, JARS = "spark.jars.packages", "spark.jars"
# Formats whose jars Spark does not bring, and where they come from.
COORDINATES = {"kafka": "org.apache.spark:spark-sql-kafka-0-10_2.13:{version}"}


def session(
    pipelines: Sequence[Pipeline],
    *,
    master: str | None = None,
    remote: str | None = None,
    say: Callable[[str], None] = print,
) -> "SparkSession":
    """A session for all of them. `master` and `remote` win over what the files say. An error where files disagree."""
    conf = settings(pipelines)
    remote = remote or (None if master else _agreed(pipelines, "remote"))
    if remote is not None:
        return _connected(remote, conf, pipelines)
    for needed in sorted(_missing(pipelines, conf)):
        say(
            f"fetching {needed}, which a pipeline needs and Spark does not bring (once; then it is in the cache of Ivy)"
        )
        conf[PACKAGES] = ",".join(filter(None, [conf.get(PACKAGES, ""), needed]))
    name = pipelines[0].key if len(pipelines) == 1 else f"penstock ({len(pipelines)} pipelines)"
    # A plan with many columns is compiled by recursion, deeper than Java's default allows.
    options = conf.pop("spark.driver.extraJavaOptions", "")
    conf["spark.driver.extraJavaOptions"] = f"-Xss4m {options}".strip()
    spark = local_session(name, master or _agreed(pipelines, "master") or "local[*]", quiet=True, conf=conf)
    _hide(spark, pipelines)
    return spark


def stop(spark: "SparkSession") -> None:
    """End the session. A signal may have ended Spark's JVM as well: then there is nothing left to end."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped] # it ships no types

    with contextlib.suppress(Py4JError, OSError):
        spark.stop()


def hush(spark: "SparkSession") -> None:
    """Let Spark and its link to Python say nothing more on this terminal: all that is cut off would show its stack of
    calls. The log of a Spark Connect server is its own.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    with contextlib.suppress(Py4JError, PySparkException, OSError):
        spark.sparkContext.setLogLevel("OFF")
        java = spark.sparkContext._jvm.java  # type: ignore[union-attr] # a session has one
        java.lang.System.setErr(java.io.PrintStream(java.io.OutputStream.nullOutputStream()))  # Scala's, and threads'


def settings(pipelines: Sequence[Pipeline]) -> dict[str, str]:
    """The settings of all files. An error where two of them want different things."""
    conf: dict[str, str] = {}
    owners: dict[str, Pipeline] = {}
    for pipeline in pipelines:
        packages = ",".join(pipeline.spark.packages)
        own = {
            key: str(value).lower() if isinstance(value, bool) else str(value)
            for key, value in pipeline.spark.conf.items()
        }
        for key, value in own.items():
            if conf.setdefault(key, value) != value:
                raise OptionError(
                    f"{pipeline.file}: {key} is '{value}', and '{conf[key]}' in {owners[key].file}: pipelines that run "
                    "together share one Spark. Make them agree, or run them apart."
                )
            owners[key] = pipeline
        if packages:
            listed = dict.fromkeys(filter(None, [*conf.get(PACKAGES, "").split(","), *packages.split(",")]))
            conf[PACKAGES] = ",".join(listed)
    return conf


def _agreed(pipelines: Sequence[Pipeline], name: str) -> str | None:
    values = {getattr(pipeline.spark, name): pipeline for pipeline in pipelines if getattr(pipeline.spark, name)}
    if len(values) > 1:
        (first, one), (second, other), *_ = values.items()
        raise OptionError(
            f"{one.file} wants {name} '{first}', and {other.file} '{second}': pipelines that run together share one "
            f"Spark. Give --{name}, or run them apart."
        )
    return next(iter(values), None)


def _ends(pipelines: Sequence[Pipeline]) -> list[End]:
    each = [[p.source, *p.sinks, *([p.dead_letters] if p.dead_letters else [])] for p in pipelines]
    return [end for ends in each for end in ends]


def _missing(pipelines: Sequence[Pipeline], conf: dict[str, str]) -> set[str]:
    """Coordinates of jars that a pipeline needs and no setting names."""
    from pyspark import __version__

    given = f"{conf.get(PACKAGES, '')},{conf.get(JARS, '')}"
    types = {end.type for end in _ends(pipelines)}
    return {
        coordinate.format(version=__version__.partition(".dev")[0])
        for name, coordinate in COORDINATES.items()
        if name in types and f"sql-{name}" not in given
    }


def _connected(remote: str, conf: dict[str, str], pipelines: Sequence[Pipeline]) -> "SparkSession":
    """A session of Spark Connect. Its server has its own settings: only those of SQL can be changed."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote(remote)
    if remote.startswith("local"):  # a server of this run alone: its log would come to this terminal
        builder = builder.config("spark.log.level", "OFF").config("spark.ui.showConsoleProgress", "false")
    try:
        spark: SparkSession = builder.getOrCreate()
        for key, value in ({SERVERS_STACK: "false"} | conf).items():
            spark.conf.set(key, value)
    except PySparkException as error:
        raise OptionError(f"Spark Connect at {remote}: {str(error).strip().splitlines()[0]}") from None
    _hide(spark, pipelines)
    return spark


def _hide(spark: "SparkSession", pipelines: Sequence[Pipeline]) -> None:
    """Let Spark hide all secrets of the files in what it shows of plans, whatever the format calls them."""
    hide_secrets(spark)
    names = sorted({re.escape(key) for end in _ends(pipelines) for key in end.hidden})
    if names:
        spark.conf.set(REDACTION, f"{spark.conf.get(REDACTION)}|(?i:^({'|'.join(names)})$)")
