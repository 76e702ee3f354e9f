"""Tables keep their options in the metadata of their first column: Spark forgets those of CREATE TABLE."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql.types import StructField, StructType

from penstock.errors import OptionError
from penstock.options import Options, alias, secrets

TABLE_OPTIONS = "penstock.options"


def given_to_create(options: Mapping[str, str]) -> dict[str, str] | None:
    """What the user gave to CREATE TABLE, without what Spark adds; None where this is no CREATE TABLE."""
    if "provider" not in options:
        return None
    own = ("provider", "owner", "comment", "location", "external", "is_managed_location")
    return {k: v for k, v in options.items() if k not in own and not k.startswith("option.")}


def remember(schema: StructType, given: Mapping[str, str], models: Iterable[type[Options]]) -> StructType:
    """`schema` with the options in its first field. Secrets are refused: the catalog is no place for them."""
    hidden = {alias(name).lower(): alias(name) for model in models for name in secrets(model)}
    for key in given:
        if key.lower() in hidden:
            name = hidden[key.lower()]
            raise OptionError(
                f"option '{name}' is a secret, and CREATE TABLE would write it into the catalog. Give '{name}File' "
                f"instead, or the option with each query: SELECT ... FROM t WITH ('{name}' = ...)."
            )
    first = schema.fields[0]
    kept = {TABLE_OPTIONS: json.dumps(dict(given), sort_keys=True)}
    return StructType([StructField(first.name, first.dataType, first.nullable, kept), *schema.fields[1:]])


def recall(schema: StructType, model: type[Options]) -> dict[str, Any]:
    """The options of `model` that `remember` left, with lower-case keys as Spark's own."""
    metadata = schema.fields[0].metadata if schema.fields else {}
    kept = json.loads((metadata or {}).get(TABLE_OPTIONS, "{}"))
    known = {alias(name).lower() for name in model.model_fields}
    return {k.lower(): v for k, v in kept.items() if k.lower() in known}
