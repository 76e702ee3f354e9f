"""What is installed from a wheel: a folder of its own, without the sources and without any extra."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, ROOT]
    subprocess.run(command, check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder / "site")
    return folder / "site"


def test_the_wheel_has_a_shim_for_every_format_and_the_files_that_are_not_python(installed: Path) -> None:
    sources = {p.relative_to(ROOT / "src") for p in (ROOT / "src").rglob("*") if p.is_file() and p.suffix != ".pyc"}
    assert {path for path in sources if not (installed / path).is_file()} == set()


def test_every_shim_of_the_wheel_is_found_without_any_client_library(installed: Path) -> None:
    code = (
        "import sys; sys.modules['nkeys'] = None\n"
        "import penstock; from penstock.connectors import FORMATS; from importlib import import_module\n"
        "names = [import_module(f'pyspark_penstock_{name}').DefaultSource.name() for name in FORMATS]\n"
        "print(penstock.__file__, names == list(FORMATS))"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=installed, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [str(installed / "penstock" / "__init__.py"), "True"]
