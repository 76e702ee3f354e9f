"""The JSON Schema of pipeline files: it takes what `load` takes, and marks what is misspelt."""

import tomllib

import pytest
from jsonschema import Draft202012Validator
from test_pipeline_files import SEED, WHOLE

from penstock.pipelines.convert import convert
from penstock.pipelines.new import SINKS, SOURCES, text
from penstock.pipelines.schema import json_schema

SCHEMA = Draft202012Validator(json_schema())
REST = '[source]\ntype = "rate"\n[[sinks]]\ntype = "console"\n'


def marked(text: str) -> list[str]:
    """What the schema says of a file: where, and what."""
    errors = SCHEMA.iter_errors(tomllib.loads(text))
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in errors]


def test_it_is_a_json_schema() -> None:
    Draft202012Validator.check_schema(json_schema())


def test_it_takes_a_whole_file() -> None:
    assert marked(WHOLE) == []


def test_it_takes_what_new_and_convert_write() -> None:
    for source, questions in SOURCES.items():
        for sink, others in SINKS.items():
            ends = [
                (name, {each.key: each.default for each in asked})
                for name, asked in ((source, questions), (sink, others))
            ]
            assert marked(text("new", ends[0], ends[1], ("json", {"schema": "id BIGINT"}))) == []
    assert marked(convert(SEED, "seed").text) == []


@pytest.mark.parametrize(
    "also",
    [
        '[source]\ntype = "rate"\n[sinks]\ntype = "console"\n',
        'input_schema = "json"\n[source]\ntype = "journal"\nidentifier = { env = "X" }\n[[sinks]]\ntype = "console"\n',
        '[source]\ntype = "rate"\nrows_per_second = "${RATE}"\n[[sinks]]\ntype = "console"\n',
        '[source]\ntype = "rate"\nrowsPerSecond = 5\n[[sinks]]\ntype = { custom = "x" }\nany = "thing"\n',
        f'{REST}[checkpoint]\nlocation = {{ file = "place" }}\n',
        f'{REST}[restart]\nbackoff = "${{SECONDS}}s"\nmax_restarts = "${{RESTARTS}}"\n',
        f'{REST}[transforms.delete_fields]\nfields = ["a"]\n',
        '[source]\ntype = "rate"\n[[streams]]\nstream = "s"\ntopic = "t"\n[iggy]\nusername = "iggy"\n',
    ],
)
def test_it_takes_other_spellings(also: str) -> None:
    assert marked(also) == []


@pytest.mark.parametrize(
    ("place", "right", "wrong"),
    [
        ("", "restart", "restrt"),
        ("restart", "max_restarts", "max_restart"),
        ("source", "batch_size", "batch_sise"),
        ("sinks.0", "partition_by", "partitionby"),
        ("source.input_schema", "schema = ", "shema = "),
        ("transforms.1", "add_fields", "add_field"),
        ("errors.sink", "subject", "subjct"),
    ],
)
def test_it_marks_a_misspelt_key_at_its_place(place: str, right: str, wrong: str) -> None:
    text = WHOLE.replace(right, wrong, 1)
    assert text != WHOLE
    name = wrong.removesuffix(" = ")
    assert marked(text) == [f"{place}: Additional properties are not allowed ('{name}' was unexpected)"]


def test_it_marks_a_wrong_choice() -> None:
    said = marked(WHOLE.replace('"dead_letter"', '"dead"'))
    assert said == ["errors.mode: 'dead' is not one of ['fail', 'skip', 'dead_letter']"]
