"""The folder that `local_session` puts on PYTHONPATH: every Python that the program starts then runs its file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

LEAN = Path(penstock.__file__).parent / "spark" / "lean"


def python(program: str, *paths: str | Path, arguments: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
    """A child Python with these folders first on its path, as a program with a local session starts it."""
    given = os.pathsep.join(map(str, (LEAN, *paths)))
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=os.environ | {"PYTHONPATH": given},
        capture_output=True,
        text=True,
        check=True,
    )


def test_a_child_process_says_nothing_of_the_folder() -> None:
    done = python("print('done')")
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_the_folder_is_not_on_the_path_of_a_child_process() -> None:
    assert str(LEAN) not in python("import sys; print(*sys.path, sep='\\n')").stdout.splitlines()


def test_the_sitecustomize_of_the_user_runs_as_well(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('mine')")
    done = python("import sitecustomize; print(sitecustomize.__file__)", tmp_path)
    assert (done.stdout.splitlines(), done.stderr) == (["mine", str(tmp_path / "sitecustomize.py")], "")


def test_the_sitecustomize_of_the_user_that_fails_is_told_by_python(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import nonesuch")
    done = python("print('done')", tmp_path)
    assert done.stdout == "done\n"
    assert "No module named 'nonesuch'" in done.stderr


def test_a_zip_of_another_spark_stays_on_the_path(tmp_path: Path) -> None:
    zipped = tmp_path / "python" / "lib" / "pyspark.zip"
    done = python("import sys; print(*sys.path, sep='\\n')", zipped)
    assert str(zipped) in done.stdout.splitlines()
    assert done.stderr == ""


@pytest.mark.parametrize(("process", "imports"), [("pyspark.worker", False), ("a program of the user", True)])
@pytest.mark.parametrize(
    ("use", "result"),
    [
        ("pyarrow.table({'a': [1]}).to_pandas().a.sum()", "1"),
        # Taken for a sequence of numbers, a series has NaN and no null.
        ("pyarrow.array(import_module('pandas').Series([1.5, None])).null_count", "1"),
        ("pyarrow.Table.from_pandas(import_module('pandas').DataFrame({'a': [1]})).num_rows", "1"),
        ("pyarrow.array(import_module('pandas.core.indexes.api').Index([1, 2])).type", "int64"),
    ],
)
def test_where_spark_runs_python_pyarrow_does_without_pandas_until_somebody_needs_it(
    tmp_path: Path, process: str, imports: bool, use: str, result: str
) -> None:
    made = "import pyarrow, sys; from importlib import import_module; pyarrow.array([1])"
    done = python(f"{made}; print('pandas' in sys.modules); print({use})", tmp_path, arguments=(process,))
    assert (done.stdout.split(), done.stderr) == ([str(imports), result], "")
