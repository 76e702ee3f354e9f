"""Put on PYTHONPATH by penstock.spark.session, this makes Spark's Python processes start in half the time or less.

Spark puts its pyspark.zip first on the path of every Python it starts. The zip holds no compiled code,
so each process compiles what it imports, 1 to 1.7 s of it. Where the same pyspark is installed beside it,
that one is compiled already: drop the zip, and do what any other sitecustomize wants.

The first array that pyarrow makes imports pandas, where that is installed: 0.3 s for each of the five processes of a
query that only run data sources. There, pyarrow does without, until somebody converts from or to pandas.
"""

import importlib.util
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
_kept = [p for p in sys.path if os.path.abspath(p or ".") != _here]  # without it, or the import below finds this file
_zips = [p for p in _kept if p.endswith("pyspark.zip")]
sys.path[:] = [p for p in _kept if p not in _zips]
if _zips:
    _found = importlib.util.find_spec("pyspark")
    _home = os.environ.get("SPARK_HOME") or os.path.dirname(os.path.dirname(os.path.dirname(_zips[0])))
    # The zip belongs to SPARK_HOME; only the package that Spark itself was started from is surely the same.
    if (
        _found is None
        or _found.origin is None
        or os.path.realpath(os.path.dirname(_found.origin)) != os.path.realpath(_home)
    ):
        sys.path[:] = _kept


class _NoPandas:
    """Lets one import of pandas fail."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


if any(part.startswith(("pyspark.sql.worker.", "pyspark.sql.streaming.python_")) for part in sys.orig_argv):
    sys.meta_path.insert(0, _NoPandas)
    try:
        import pyarrow

        pyarrow.array([])
    except ImportError:
        pass  # Spark says what is missing
    finally:
        sys.meta_path.remove(_NoPandas)

_self = sys.modules.pop("sitecustomize")
try:
    import sitecustomize  # type: ignore # noqa: F401 - the next one on the path, if any
except ModuleNotFoundError as _error:
    sys.modules["sitecustomize"] = _self
    if _error.name != "sitecustomize":
        raise  # one was found, and what it imports was not: Python says so, as it would without us
