"""One Python process that has imported what Spark's Python processes import, and forks whenever Spark starts one.

Spark starts eight of them for a session and one more for each streaming query, and they import the same for 0.4 to
0.9 s each. `local_session` starts this one while Java starts. In each process that Spark starts,
lean/sitecustomize.py runs first. It hands its arguments, environment and open files over to here, and waits for the
fork that does the work. Where anything is unlike here, that process goes on as it would without this one.

Knows what Spark's processes are called, and no connector: it imports those that Spark would find.
"""

import gc
import importlib
import json
import os
import pkgutil
import re
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

ADDRESS = "PENSTOCK_WARM_PYTHON"
# Python and its libraries read these only when they start. Spark sets the first always, the others where they are not.
OF_SPARK = {"PYTHONUNBUFFERED": "YES"}
OF_SPARK_WHERE_UNSET = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
# No thread may be there when a process forks, and Arrow has one for an allocator that it does not use.
NO_THREAD = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
READ_AT_START = ("PYTHON", "OMP_", "OPENBLAS_", "MKL_", "ARROW_", "LD_", "MALLOC_")
READ_LATER = ("PYTHONPATH", "PYTHON_")  # who asks sends its path; what begins with PYTHON_ is Spark's
WORKERS = ("pyspark.worker", "pyspark.sql.worker.plan_data_source_read", "pyspark.sql.worker.write_into_data_source")
_started: "list[subprocess.Popen[bytes]]" = []


def start() -> None:
    """Start it, once in a process, and let all that is started from now on know of it. It ends with this process.

    Not where a JVM runs already, as that has its environment, and only on Linux.
    """
    from pyspark import SparkContext

    if _started or sys.platform != "linux" or SparkContext._gateway or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind("")  # Linux gives it a name, which is in no folder
        listening.listen(64)
        os.environ[ADDRESS] = listening.getsockname().decode().removeprefix("\0")
        command = [sys.executable, "-m", "penstock.spark.warm", str(listening.fileno())]
        environ = OF_SPARK_WHERE_UNSET | os.environ | OF_SPARK | NO_THREAD
        running = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[listening.fileno()], env=environ
        )
    _started.append(running)  # its standard input is at its end when this process is


def load() -> None:
    """Import what those of Spark's processes import that run a data source, or a task of one."""
    for name in WORKERS:
        importlib.import_module(name)
    for module in pkgutil.iter_modules():
        if module.name.startswith("pyspark_penstock_"):
            importlib.import_module(module.name)
    gc.collect()
    gc.freeze()


def serve(listening: socket.socket) -> "tuple[dict[str, Any], list[int]] | None":
    """Fork for each that asks, and return in the fork what it is to be.

    In the process itself: None, when standard input is at its end and no fork is left.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in all that the JVM starts
    ended, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    forks: dict[int, socket.socket] = {}
    poll = select.poll()
    for each in (0, ended, listening.fileno()):
        poll.register(each, select.POLLIN)
    is_wanted = True
    while is_wanted or forks:
        for file, _ in poll.poll()[:1]:  # one at a time: what it does may close the file of the next
            if file == 0:
                is_wanted = False
                poll.unregister(0)
            elif file == ended:
                os.read(ended, 4096)
                for pid, code in _ended(list(forks)):
                    _tell(forks[pid], code)
                    with suppress(KeyError):
                        poll.unregister(forks[pid])
                    forks.pop(pid).close()
            elif file == listening.fileno():
                connection, _ = listening.accept()
                asked = _asked(connection)
                if asked is None:
                    connection.close()
                    continue
                if (pid := os.fork()) == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for opened in (listening, connection, *forks.values()):
                        opened.close()
                    os.close(ended)
                    os.close(wakes)
                    return asked
                for each in asked[1]:
                    os.close(each)
                forks[pid] = connection
                poll.register(connection, select.POLLIN)
                _tell(connection, "forked")
            else:  # Spark ended the process that waits for this fork
                poll.unregister(file)
                os.kill(next(pid for pid, waits in forks.items() if waits.fileno() == file), signal.SIGTERM)
    return None


def _asked(connection: socket.socket) -> "tuple[dict[str, Any], list[int]] | None":
    """What a process wants to be, with its open files. None where it is another user's, or unlike this one."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    if struct.unpack("3i", credentials)[1] != os.getuid():
        return None
    connection.settimeout(10)
    try:
        sent, files, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        request = json.loads(sent)
    except (OSError, ValueError):
        return None
    if len(files) == 3 and is_alike(request):
        return request, files
    for each in files:
        os.close(each)
    return None


def is_alike(request: dict[str, Any]) -> bool:
    """Whether a process would become, by its own imports, what this one is."""
    import pyspark

    import penstock

    return request["origins"] == [sys.executable, pyspark.__file__, penstock.__file__] and all(
        os.environ.get(name) == value
        for name, value in request["environ"].items()
        if name.startswith(READ_AT_START) and not name.startswith(READ_LATER)
    )


def _ended(pids: list[int]) -> list[tuple[int, int]]:
    """Those that have ended, with what Java takes for their exit code."""
    waited = [os.waitpid(pid, os.WNOHANG) for pid in pids]
    codes = [(pid, os.waitstatus_to_exitcode(status)) for pid, status in waited if pid]
    return [(pid, code if code >= 0 else 128 - code) for pid, code in codes]


def _tell(connection: socket.socket, word: object) -> None:
    with suppress(OSError):  # Spark may have ended it
        connection.sendall(str(word).encode())


def become(request: dict[str, Any], files: list[int]) -> None:
    """Do what that process was started for, as if it had been this one from the beginning."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["folder"])
    module, *arguments = request["arguments"]
    sys.path[:] = [request["folder"], *request["path"]]
    sys.argv[:] = [module, *arguments]
    with suppress(OSError):  # what `ps` calls it; the command line stays that of this process
        Path("/proc/self/comm").write_text(re.sub(r"^pyspark\.sql\.\w+\.", "", [module, *arguments][-1]))
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as inherited:
        load()
        fork = serve(inherited)
    if fork is not None:
        become(*fork)
