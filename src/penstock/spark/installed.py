"""Which Spark this Python has, without loading it, and what to say where it has none."""

import importlib.util
import os
import re
import sys

from penstock.errors import OptionError

NEEDED = (4, 2)
_INSTALL = (
    "pip install 'penstock[local]', or, for the Spark of a cluster, run this in its Python, as spark-submit does."
)
_UNKNOWN = "of an unknown version"


class NoSparkError(OptionError, ImportError):
    """Spark is not in this Python, or is too old."""


def require_spark() -> None:
    """An error that says what to install, unless there is a Spark that Penstock can use."""
    version = spark_version()
    if version is None:
        raise NoSparkError(f"there is no Spark in this Python. Install it: {_INSTALL}")
    if too_old(version):
        needed = ".".join(map(str, NEEDED))
        raise NoSparkError(f"Penstock needs Spark {needed} or later, and this is {version}. Install one: {_INSTALL}")


def spark_version() -> str | None:
    """The version of pyspark; None without one. Read from its file: to import it takes longer than all the rest."""
    if (loaded := sys.modules.get("pyspark")) is not None:
        return str(getattr(loaded, "__version__", _UNKNOWN))
    try:
        spec = importlib.util.find_spec("pyspark")
    except ValueError:  # sys.modules has None in its place
        return None
    if spec is None or spec.origin is None:  # a folder that happens to have this name
        return None
    try:
        file = os.path.join(os.path.dirname(spec.origin), "version.py")  # on a cluster, inside of a zip
        text = spec.loader.get_data(file).decode()  # type: ignore[union-attr] # as those of files and zips have it
    except (OSError, AttributeError, UnicodeDecodeError):
        return _UNKNOWN
    match = re.search(r"""^__version__\b[^=]*=\s*["']([^"']+)""", text, re.MULTILINE)
    return match[1] if match else _UNKNOWN


def too_old(version: str) -> bool:
    """Whether a Spark is older than Penstock needs. An unknown version is not."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return match is not None and (int(match[1]), int(match[2])) < NEEDED
