"""Schemas of Avro and Protobuf in a pipeline file, as codecs take them. Reads the files that they are in; a registry is
asked by the codecs, when a query starts.
"""

from pathlib import Path
from typing import Any

from penstock import codecs
from penstock.codecs.registry import Registry, subject_name
from penstock.errors import OptionError
from penstock.pipelines import model

# Types that the bytes of a record must have a schema for.
BINARY = ("avro", "protobuf")


def check(schema: model.Schema, *, reads: bool) -> None:
    """Refuse a schema that cannot be read, or that says too little. Asks no registry."""
    if schema.type not in BINARY:
        return
    for key in ("auto_register", "use_latest_version") if reads else ("schema_id",):
        if key in schema.model_fields_set:
            raise OptionError(f"'{key}' is for {'output_schema' if reads else 'input_schema'}: leave it out here.")
    codecs.require(schema.type)
    _registry(schema)  # refuses an address that is none
    has_schema = schema.fields is not None or schema.schema_file is not None
    if not has_schema and schema.schema_registry_url is None and (reads or schema.type == "protobuf"):
        raise OptionError(f"{schema.type} needs 'schema', 'schema_file', or 'schema_registry_url'.")
    if schema.type == "protobuf" and has_schema and schema.message is None:
        raise OptionError("protobuf needs the name of the 'message', such as shop.Order.")
    if schema.type == "avro":
        if has_schema:
            from penstock.codecs.avro_types import Avro

            try:
                Avro.parse(_text(schema) or "").arrow()
            except RecursionError:
                raise OptionError("the schema of Avro is nested too deeply.") from None
        return
    if has_schema:
        from penstock.codecs import protobuf

        given = _given(schema)
        protobuf.decoder(given["descriptors"], schema.message, schema=given["schema"])


def to_decode(schema: model.Schema, topic: str | None) -> dict[str, Any]:
    """What `codecs.decode` is given. `topic`: what a subject is named after."""
    registry = _registry(schema)
    given = _given(schema) | {"registry": registry, "schema_id": schema.schema_id}
    needs_subject = registry is not None and given["schema"] is None and given["descriptors"] is None
    if needs_subject and schema.schema_id is None:
        given["subject"] = _subject(schema, topic)
    if schema.type == "avro":
        del given["descriptors"]
    else:
        given["message"] = schema.message
    return given


def to_encode(schema: model.Schema, topic: str | None) -> dict[str, Any]:
    """What `codecs.value_of` is given. `topic`: what a subject is named after."""
    registry = _registry(schema)
    given = _given(schema) | {"message": schema.message, "registry": registry, "subject": None}
    given |= {"register": schema.auto_register, "use_latest": schema.use_latest_version}
    if registry is not None:
        given["subject"] = _subject(schema, topic)
    return given


def _subject(schema: model.Schema, topic: str | None) -> str:
    if schema.subject is not None:
        return schema.subject
    record = schema.message
    if record is None and schema.type == "avro" and (text := _text(schema)) is not None:
        from penstock.codecs.avro_types import Avro

        top = Avro.parse(text).schema
        record = top.get("name") if isinstance(top, dict) else None
    try:
        return subject_name(schema.subject_name_strategy, topic=topic, record=record)
    except OptionError as error:
        raise OptionError(f"{error} Set 'subject'.") from None


def _given(schema: model.Schema) -> dict[str, Any]:
    """The schema itself, as text or as a descriptor set of protoc."""
    file = Path(schema.schema_file) if schema.schema_file is not None else None
    if schema.type == "protobuf" and file is not None and file.suffix != ".proto":
        return {"schema": None, "descriptors": file.read_bytes()}
    return {"schema": _text(schema), "descriptors": None}


def _text(schema: model.Schema) -> str | None:
    if schema.schema_file is None:
        return schema.fields
    try:
        return Path(schema.schema_file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"the file '{schema.schema_file}' cannot be read: {error}.") from None


def _registry(schema: model.Schema) -> Registry | None:
    if schema.schema_registry_url is None:
        return None
    password, token = schema.schema_registry_password, schema.schema_registry_token
    return Registry(
        schema.schema_registry_url,
        username=schema.schema_registry_username,
        password=password.get_secret_value() if password is not None else None,
        token=token.get_secret_value() if token is not None else None,
        ca=schema.schema_registry_ca,
        cert=schema.schema_registry_cert,
        key=schema.schema_registry_key,
    )
