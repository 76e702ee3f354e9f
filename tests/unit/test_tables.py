import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from penstock.connectors.jetstream.options import JetStreamOptions, JetStreamSinkOptions
from penstock.errors import OptionError
from penstock.options import Options, alias, secrets, shown
from penstock.spark.catalog import DECLARED, TABLE_OPTIONS, given_to_create, is_insert, recall, remember

MODELS: list[type[Options]] = [JetStreamOptions, JetStreamSinkOptions]
SCHEMA = StructType([StructField("value", BinaryType(), False), StructField("sequence", LongType())])
SECRETS = sorted({alias(name) for model in MODELS for name in secrets(model)})
OF_ONE_WRITE = ["txnAppId", "txnVersion"]
OPEN = sorted({alias(name) for model in MODELS for name in model.model_fields} - {*SECRETS, *OF_ONE_WRITE})
# As a user writes them, in any case, and never the same name twice.
GIVEN = st.dictionaries(
    st.sampled_from([*OPEN, "somethingElse", "path"]), st.text(max_size=12) | st.just('"\\ é\n'), max_size=6
).flatmap(lambda given: st.sampled_from([given, {k.lower(): v for k, v in given.items()}]))


@given(GIVEN)
def test_what_was_remembered_is_recalled_for_those_who_know_it(given_: dict[str, str]) -> None:
    schema = remember(SCHEMA, given_, MODELS)
    for model in MODELS:
        known = {alias(name).lower() for name in model.model_fields}
        assert recall(schema, model, {}) == {k.lower(): v for k, v in given_.items() if k.lower() in known}


@given(GIVEN)
def test_a_remembering_schema_has_the_same_columns(given_: dict[str, str]) -> None:
    schema = remember(SCHEMA, given_, MODELS)
    bare = [(field.name, field.dataType, field.nullable) for field in schema.fields]
    assert bare == [(field.name, field.dataType, field.nullable) for field in SCHEMA.fields]
    assert all(not field.metadata for field in schema.fields[1:])
    assert all(not field.metadata for field in SCHEMA.fields), "the schema given is not touched"


@given(GIVEN)
def test_options_are_recalled_from_a_schema_that_was_in_a_catalog(given_: dict[str, str]) -> None:
    schema = remember(SCHEMA, given_, MODELS)
    back = StructType.fromJson(json.loads(schema.json()))
    assert recall(back, JetStreamOptions, {}) == recall(schema, JetStreamOptions, {})


def test_options_in_another_order_make_the_same_table() -> None:
    one, other = {"stream": "S", "servers": "a"}, {"servers": "a", "stream": "S"}
    assert remember(SCHEMA, one, MODELS) == remember(SCHEMA, other, MODELS)


@pytest.mark.parametrize(
    "schema",
    [
        StructType([]),
        SCHEMA,
        StructType([StructField("value", BinaryType(), metadata={"comment": "the body"})]),
    ],
)
def test_a_schema_that_remembers_nothing_recalls_nothing(schema: StructType) -> None:
    assert recall(schema, JetStreamOptions, {}) == {}
    assert recall(schema, JetStreamOptions, {"x": "1"}) == {"x": "1"}
    assert not is_insert(schema)


@pytest.mark.parametrize("name", OF_ONE_WRITE)
@pytest.mark.parametrize("case", [str, str.lower, str.upper])
def test_what_belongs_to_one_write_is_not_kept_for_all(name: str, case: type[str]) -> None:
    with pytest.raises(OptionError, match="belong to one write, and a table would give them to each"):
        remember(SCHEMA, {"stream": "S", case(name): "1"}, MODELS)


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("case", [str, str.lower, str.upper])
def test_a_secret_is_not_written_into_a_catalog(name: str, case: type[str]) -> None:
    documented = shown(JetStreamOptions, next(field for field in JetStreamOptions.model_fields if alias(field) == name))
    for spelt in (name, documented):
        with pytest.raises(OptionError, match=f"option '{documented}' is a secret.*'{name}File'") as error:
            remember(SCHEMA, {"stream": "S", case(spelt): "secret:hunter2"}, MODELS)
        assert "hunter2" not in str(error.value)


def test_there_are_secrets_to_refuse_and_their_files_are_none() -> None:
    assert {"password", "token", "credentials", "nkeySeed"} <= set(SECRETS)
    files = {f"{name}File": "/etc/x" for name in SECRETS}
    assert recall(remember(SCHEMA, files, MODELS), JetStreamOptions, {}) == {k.lower(): v for k, v in files.items()}


def test_a_secret_of_either_model_is_refused() -> None:
    remember(SCHEMA, {"password": "x"}, [])
    for models in ([JetStreamOptions], [JetStreamSinkOptions], MODELS):
        with pytest.raises(OptionError):
            remember(SCHEMA, {"password": "x"}, models)


def test_the_options_lie_under_a_name_of_our_own_beside_the_type_as_spark_notes_it() -> None:
    metadata = remember(SCHEMA, {"stream": "S"}, MODELS).fields[0].metadata
    assert metadata == {TABLE_OPTIONS: '{"stream": "S"}', DECLARED: "binary"}


def test_a_column_whose_type_spark_could_not_parse_again_holds_no_options() -> None:
    nested = StructType([StructField("a b", StructType([StructField("c d", LongType())])), *SCHEMA.fields])
    marked = remember(nested, {"stream": "S"}, MODELS)
    assert [TABLE_OPTIONS in field.metadata for field in marked.fields] == [False, True, False]
    assert recall(marked, JetStreamOptions, {}) == {"stream": "S"}


def test_rows_are_an_insert_only_where_spark_took_its_note_off() -> None:
    marked = remember(SCHEMA, {"stream": "S"}, MODELS)
    assert not is_insert(marked)  # read from the table
    del marked.fields[0].metadata[DECLARED]
    assert is_insert(marked)


@pytest.mark.parametrize("kept", [{"servers": "a", "userFile": "u"}, {"userFile": "u"}])
def test_a_tables_options_go_to_no_other_server(kept: dict[str, str]) -> None:
    schema = remember(SCHEMA, kept, MODELS)
    for model in MODELS:
        assert recall(schema, model, {"requestTimeout": "5s"})["userfile"] == "u"
        assert recall(schema, model, {"Servers": kept["servers"]} if "servers" in kept else {})["userfile"] == "u"
        with pytest.raises(OptionError, match="option 'servers' is not that of the table"):
            recall(schema, model, {"Servers": "b"})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, None),
        ({"stream": "S"}, None),
        ({"owner": "me", "option.stream": "S"}, None),
        ({"provider": "jetstream"}, {}),
        ({"provider": "jetstream", "owner": "me"}, {}),
        ({"provider": "jetstream", "stream": "S", "option.stream": "S"}, {"stream": "S"}),
        ({"provider": "jetstream", "ownership": "x", "options": "y"}, {"ownership": "x", "options": "y"}),
    ],
)
def test_what_spark_adds_to_create_table_is_left_out(options: dict[str, str], expected: dict[str, str] | None) -> None:
    before = dict(options)
    assert given_to_create(options) == expected
    assert options == before
