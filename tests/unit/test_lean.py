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


@pytest.mark.parametrize(
    ("process", "imports"), [("pyspark.sql.worker.create_data_source", False), ("pyspark.worker", True)]
)
def test_only_where_data_sources_run_pyarrow_does_without_pandas(tmp_path: Path, process: str, imports: bool) -> None:
    """A conversion brings pandas back."""
    made = "import pyarrow, sys; pyarrow.array([1]); print('pandas' in sys.modules)"
    done = python(f"{made}; print(pyarrow.table({{'a': [1]}}).to_pandas().a.sum())", tmp_path, arguments=(process,))
    assert (done.stdout.split(), done.stderr) == ([str(imports), "1"], "")
