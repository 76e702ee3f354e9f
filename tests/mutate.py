"""Takes each mechanism that a promise rests on out of a copy of the source, and sees that a test fails without it.

`make mutate` runs all of mutations.toml; `make mutate ONLY=ledger` those whose name contains that. A mutation that no
test notices, or that no longer applies, is printed and makes the run fail.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def noticed(mutation: dict[str, Any], folder: Path) -> str | None:
    """Why the mutation proves nothing; None where a test failed as it must."""
    source = folder / "src"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(ROOT / "src", source)
    file = folder / mutation["file"]
    text = file.read_text()
    if text.count(mutation["old"]) != 1:
        return f"{mutation['file']} has the text to replace {text.count(mutation['old'])} times"
    file.write_text(text.replace(mutation["old"], mutation["new"]))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutation["tests"]]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])}
    run = subprocess.run(
        command,
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if run.returncode == 1 and " failed" in run.stdout:
        return None
    return "every test passed" if run.returncode == 0 else f"pytest ended with {run.returncode}: {run.stdout[-500:]}"


def main(only: str) -> int:
    mutations = tomllib.loads((ROOT / "tests" / "mutations.toml").read_text())["mutation"]
    chosen = [mutation for mutation in mutations if only in mutation["name"]]
    unnoticed = 0
    with tempfile.TemporaryDirectory(prefix="penstock-mutate-") as folder:
        for mutation in chosen:
            why = noticed(mutation, Path(folder))
            unnoticed += why is not None
            print(f"{'NOT NOTICED' if why else 'noticed'}: {mutation['name']}{f' ({why})' if why else ''}", flush=True)
    print(f"{len(chosen) - unnoticed} of {len(chosen)} mechanisms are held by a test")
    return 1 if unnoticed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
