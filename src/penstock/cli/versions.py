"""What a report of a problem should begin with: which Penstock, Spark, Java and Python these are."""

import platform
import sys

from penstock import __version__
from penstock.errors import OptionError
from penstock.spark.installed import NEEDED, spark_version, too_old
from penstock.spark.session import require_java


def versions() -> dict[str, str]:
    """The version of each, or what to install. Loads no Spark, and starts none."""
    return {"Penstock": __version__, "Spark": _spark(), "Java": _java(), "Python": _python()}


def _spark() -> str:
    version = spark_version()
    if version is None:
        return "not installed: pip install 'penstock[local]', or use the Python of your cluster's Spark"
    return f"{version}, too old: Penstock needs {'.'.join(map(str, NEEDED))} or later" if too_old(version) else version


def _java() -> str:
    try:
        return require_java()
    except OptionError as error:
        return f"not usable: {error}"
    except OSError as error:  # what is there does not run
        return f"not usable: {error}. Spark needs a JDK 17 or 21."


def _python() -> str:
    return f"{platform.python_version()} ({sys.executable})"
