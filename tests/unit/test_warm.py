"""The process that Spark's Python processes are forks of: they must not differ from those that Spark starts itself."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest

import penstock
from penstock.spark import warm

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is none")
LEAN = Path(penstock.__file__).parent / "spark" / "lean"
PATH = os.pathsep.join(filter(None, [str(LEAN), os.environ.get("PYTHONPATH")]))
STARTS = """
import os, sys
from penstock.spark import warm
warm.start()
print(os.environ[warm.ADDRESS], warm._started[0].pid, flush=True)
sys.stdin.read()
"""
ORIGINS = [sys.executable, pyspark.__file__, penstock.__file__]
DAEMON = [sys.executable, "-m", "pyspark.daemon", "pyspark.worker"]


@contextmanager
def program() -> Iterator["subprocess.Popen[str]"]:
    """A program that has started a warm Python, as one with a local session does."""
    env = os.environ | {"PYTHONPATH": PATH}
    with subprocess.Popen(
        [sys.executable, "-c", STARTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as running:
        yield running


@pytest.fixture(scope="module")
def warm_python() -> Iterator[tuple[str, int]]:
    """Its address and its process."""
    with program() as running:
        assert running.stdout
        address, pid = running.stdout.readline().split()
        yield address, int(pid)


def ask(address: str, folder: Path, code: str, **differs: Any) -> tuple[socket.socket, Any]:
    """A connection on which a fork was asked to run this code as a module with an argument, and what it prints."""
    (folder / "module.py").write_text(code)
    reads, writes = os.pipe()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(60)
    connection.connect("\0" + address)
    request = {
        "origins": ORIGINS, "environ": {"COLOUR": "blue"}, "folder": str(folder), "path": sys.path,
        "arguments": ["module", "pyspark.sql.worker.argument"],
    }  # fmt: skip
    with open(os.devnull) as nothing:
        files = [nothing.fileno(), writes, writes]
        socket.send_fds(connection, [json.dumps(request | differs).encode()], files)
    os.close(writes)
    return connection, os.fdopen(reads)


def test_a_fork_has_the_arguments_environment_folder_and_files_of_who_asked(
    warm_python: tuple[str, int], tmp_path: Path
) -> None:
    address, pid = warm_python
    code = (
        "import json, os, sys\n"
        "name = open('/proc/self/comm').read().strip()\n"
        "print(json.dumps([__name__, sys.argv[1:], dict(os.environ), os.getcwd(), sys.path[0], name, os.getppid()]))"
    )
    connection, printed = ask(address, tmp_path, code)
    with connection, printed:
        told = ["pyspark.sql.worker.argument"]
        folder = str(tmp_path)
        assert json.load(printed) == ["__main__", told, {"COLOUR": "blue"}, folder, folder, "argument", pid]
        assert [connection.recv(16), connection.recv(16)] == [b"forked", b"0"]


def test_a_fork_has_what_it_needs_and_no_more(warm_python: tuple[str, int], tmp_path: Path) -> None:
    """No thread is there before the fork, no random numbers that forks would share, and no pandas."""
    code = (
        "import os, sys\n"
        "names = 'pyspark.worker', 'penstock.connectors.s2', 'numpy.random', 'pandas'\n"
        "print(len(os.listdir('/proc/self/task')), [name for name in names if name in sys.modules])\n"
    )
    connection, printed = ask(warm_python[0], tmp_path, code)
    with connection, printed:
        assert printed.read() == "1 ['pyspark.worker', 'penstock.connectors.s2']\n"
    assert len(os.listdir(f"/proc/{warm_python[1]}/task")) == 1


@pytest.mark.parametrize(
    ("code", "told"),
    [("raise SystemExit(7)", b"7"), ("import os; os.kill(os.getpid(), 9)", b"137"), ("nonesuch", b"1")],
    ids=["exits", "is killed", "fails"],
)
def test_who_asked_is_told_how_its_fork_ended(
    warm_python: tuple[str, int], tmp_path: Path, code: str, told: bytes
) -> None:
    connection, printed = ask(warm_python[0], tmp_path, code)
    with connection, printed:
        assert [connection.recv(16), connection.recv(16)] == [b"forked", told]
        assert ("NameError" in printed.read()) == (code == "nonesuch")


def test_a_fork_ends_with_the_process_that_waits_for_it(warm_python: tuple[str, int], tmp_path: Path) -> None:
    connection, printed = ask(
        warm_python[0], tmp_path, "import time; print('runs', flush=True); time.sleep(5); print('goes on')"
    )
    with printed:
        assert printed.readline() == "runs\n"
        connection.close()
        assert printed.read() == ""


@pytest.mark.parametrize(
    "differs",
    [
        {"environ": {"PYTHONHASHSEED": "7"}},
        {"environ": {"OMP_NUM_THREADS": "8"}},
        {"origins": [sys.executable, "/elsewhere/pyspark/__init__.py", penstock.__file__]},
        {"origins": ["/elsewhere/bin/python", pyspark.__file__, penstock.__file__]},
    ],
    ids=["other hashes", "more threads", "another Spark", "another Python"],
)
def test_what_is_unlike_the_warm_python_is_refused(
    warm_python: tuple[str, int], tmp_path: Path, differs: dict[str, Any]
) -> None:
    connection, printed = ask(warm_python[0], tmp_path, "print('ran')", **differs)
    with connection, printed:
        assert connection.recv(16) == b""
        assert printed.read() == ""


def test_what_cannot_be_read_is_refused_and_others_are_served(warm_python: tuple[str, int], tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect("\0" + warm_python[0])
        connection.sendall(b"{")
        assert connection.recv(16) == b""
    connection, printed = ask(warm_python[0], tmp_path, "print('ran')")
    with connection, printed:
        assert printed.read() == "ran\n"


@pytest.mark.parametrize("is_warm", [True, False])
def test_sparks_daemon_is_a_fork_where_a_warm_python_is_and_itself_elsewhere(
    warm_python: tuple[str, int], is_warm: bool
) -> None:
    address, _ = warm_python
    env = os.environ | {"PYTHONPATH": PATH, warm.ADDRESS: address if is_warm else "nobody"} | warm.OF_SPARK
    with subprocess.Popen(DAEMON, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as daemon:
        assert daemon.stdin
        assert daemon.stdout
        assert len(daemon.stdout.read(4)) == 4  # the port that it listens to
        assert ("pyarrow" in Path(f"/proc/{daemon.pid}/maps").read_text()) != is_warm
        daemon.stdin.close()
        assert (daemon.stdout.read(), daemon.wait()) == (b"", 1)  # so it ends when Spark closes its input


def test_it_ends_with_the_program_that_started_it_but_not_before_its_forks(tmp_path: Path) -> None:
    with program() as running:
        assert running.stdout
        address, pid = running.stdout.readline().split()
        code = "import time; print('runs', flush=True); time.sleep(1); print('done', flush=True)"
        connection, printed = ask(address, tmp_path, code)
        assert printed.readline() == "runs\n"
        running.send_signal(signal.SIGKILL)
        running.wait()
    with connection, printed:
        assert printed.read() == "done\n"
        assert [connection.recv(16), connection.recv(16)] == [b"forked", b"0"]
        assert connection.recv(16) == b""
    while os.path.exists(f"/proc/{pid}"):
        os.sched_yield()
