"""Put on PYTHONPATH by penstock.spark.session, this makes Spark's Python processes start in half the time or less.

Spark puts its pyspark.zip first on the path of every Python it starts. The zip holds no compiled code,
so each process compiles what it imports, 1 to 1.7 s of it. Where the same pyspark is installed beside it,
that one is compiled already: drop the zip, and do what any other sitecustomize wants.

Where a warm Python runs (penstock.spark.warm), a process of Spark's is a fork of it, and imports nothing at all.

The first array that pyarrow makes imports pandas, where that is installed, for 0.3 to 0.6 s. In Spark's processes
pyarrow does without, until somebody else imports pandas, or converts from or to it.
"""

import contextlib
import importlib.util
import os
import sys

if False:  # typing takes longer to import than the rest of this
    from importlib.machinery import ModuleSpec
    from types import ModuleType

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


def _hand_over() -> None:
    """Let a fork of the warm Python be this process, and end as the fork ends. Return where it refuses."""
    import json
    import socket
    import struct

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as warm:
        warm.connect("\0" + os.environ["PENSTOCK_WARM_PYTHON"])
        credentials = warm.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", credentials)[1] != os.getuid():
            return  # the name is another user's now
        specs = [importlib.util.find_spec(name) for name in ("pyspark", "penstock")]
        request = {
            "origins": [sys.executable, *(spec and spec.origin for spec in specs)],
            "environ": dict(os.environ),
            "folder": os.getcwd(),
            "arguments": sys.orig_argv[2:],
            "path": sys.path,
        }
        warm.settimeout(120)  # it may have to import first
        socket.send_fds(warm, [json.dumps(request).encode()], [0, 1, 2])
        if warm.recv(16) == b"forked":
            warm.settimeout(None)
            os._exit(int(warm.recv(16) or 1))


_is_sparks = sys.orig_argv[1:2] == ["-m"] and sys.orig_argv[2].startswith(
    ("pyspark.daemon", "pyspark.sql.streaming.python_streaming_source_runner")
)
if _is_sparks and "PENSTOCK_WARM_PYTHON" in os.environ:
    with contextlib.suppress(OSError):  # it has ended
        _hand_over()


class _PandasLater:
    """Lets pyarrow do without pandas until somebody else imports it, and tells pyarrow then."""

    is_time = False

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> "ModuleSpec | None":
        if name != "pandas":
            return None
        if not cls.is_time:
            raise ModuleNotFoundError(name)
        sys.meta_path.remove(cls)
        spec = importlib.util.find_spec("pandas")
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_tell(module: "ModuleType") -> None:
                load(module)
                with contextlib.suppress(ImportError):  # a version that pyarrow cannot use
                    pyarrow.lib._pandas_api.pd  # noqa: B018 - it looks for pandas again

            spec.loader.exec_module = load_and_tell  # type: ignore[method-assign] # of this one loader
        return spec


if any(part.startswith(("pyspark.", "penstock.spark.warm")) for part in sys.orig_argv):
    sys.meta_path.insert(0, _PandasLater)
    with contextlib.suppress(ImportError):  # Spark says what is missing
        import pyarrow

        pyarrow.array([])
    _PandasLater.is_time = True

_self = sys.modules.pop("sitecustomize")
try:
    import sitecustomize  # type: ignore # noqa: F401 - the next one on the path, if any
except ModuleNotFoundError as _error:
    sys.modules["sitecustomize"] = _self
    if _error.name != "sitecustomize":
        raise  # one was found, and what it imports was not: Python says so, as it would without us
