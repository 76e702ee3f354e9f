"""The list of mechanisms to take out fits the source: `make mutate` itself takes too long for every run."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
MUTATIONS = tomllib.loads((ROOT / "tests" / "mutations.toml").read_text())["mutation"]


def test_every_mutation_applies_and_names_tests_that_exist() -> None:
    for mutation in MUTATIONS:
        source = (ROOT / mutation["file"]).read_text()
        assert source.count(mutation["old"]) == 1, mutation["name"]
        compile(source.replace(mutation["old"], mutation["new"]), mutation["name"], "exec")
        for test in mutation["tests"]:
            file, _, name = test.partition("::")
            name = name.split("[")[0].rpartition("::")[2]
            assert not name or re.search(rf"def {name}\(", (ROOT / file).read_text()), f"there is no test {test}"


def test_no_two_mutations_have_one_name() -> None:
    assert len({mutation["name"] for mutation in MUTATIONS}) == len(MUTATIONS)
