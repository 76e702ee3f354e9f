"""A SparkSession with the settings that Penstock was measured with. Any other session works too, but starts slower."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import OptionError
from penstock.spark import warm
from penstock.spark.installed import require_spark
from penstock.spark.terminal import errors_last

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Over TCP, a task waits 40 ms for a delayed acknowledgement between Spark and its Python worker.
    "spark.python.unix.domain.socket.enabled": "true",
}
ON_ONE_MACHINE = {
    # 55 to 65 ms less in every micro-batch on a local disk; object stores have no rename to spare.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
# Arrow's Java checks each access to each value of a column that comes from Python (decision 030). Spark asks
# for nulls by itself, and what our sources send was checked before.
UNCHECKED = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
REDACTION = "spark.sql.redaction.options.regex"
# Secrets that Spark's own words do not hide: names of options outside of Spark, and addresses with a password.
HIDES = "(?i:seed|encryption.?key|credential|://[^/@]*@)"


def hide_secrets(spark: Any) -> None:
    """Let a session hide more options in the plans that it shows. What it hides already stays hidden."""
    pattern = spark.conf.get(REDACTION)
    if HIDES not in pattern:
        spark.conf.set(REDACTION, f"{pattern}|{HIDES}")


def require_java() -> str:
    """The version of Java. An error that says what to install, where there is none that Spark can use."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    install = (
        "Spark needs a JDK 17 or 21. Install one (Debian: apt-get install openjdk-17-jdk-headless; macOS: brew install "
        "openjdk@17) or point JAVA_HOME at it."
    )
    if java is None or not Path(java).exists():
        raise OptionError(f"there is no Java {'at JAVA_HOME=' + home if home else 'on the PATH'}. {install}")
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(\d+)', output)
    if not match or int(match[1]) < 17:
        raise OptionError(f"{java} is Java {match[1] if match else 'of an unknown version'}. {install}")
    return match[1]


def local_session(
    name: str,
    master: str = "local[*]",
    *,
    lean: bool = True,
    quiet: bool = False,
    conf: Mapping[str, str] | None = None,
) -> "SparkSession":
    """A session on this machine, or on the cluster of `master`; `conf` adds to or replaces our settings.

    `lean` lets Spark's Python processes start quickly, as forks of one that has imported everything (see warm.py) and
    without pyspark's zip (see lean/); `quiet` logs errors only. Nothing listens beyond this machine when Spark runs on
    it alone. Errors of ours that nobody catches are shown last (see terminal.py); `penstock.errors_last(False)` ends
    that.
    """
    require_spark()
    require_java()
    # Without it, workers run whatever python3 the path has, not this one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    folder = str(Path(__file__).with_name("lean"))
    paths = list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    if lean and folder not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *paths])
    if lean:
        warm.start()
    from pyspark.sql import SparkSession

    settings = CONF | dict(conf or {})
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings = ON_ONE_MACHINE | settings
    for which, more in (("driver", f" -Dlog4j2.configurationFile=file:{folder}/quiet.properties"), ("executor", "")):
        key = f"spark.{which}.extraJavaOptions"
        settings[key] = f"{UNCHECKED} {settings.get(key, '')}{more if quiet else ''}".strip()
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    hide_secrets(session)
    errors_last()
    return session
