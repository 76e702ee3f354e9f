"""The description of the HTTP interface, for programs that read OpenAPI. Pure."""

from typing import Any

from penstock import __version__

_KEY = {"name": "key", "in": "path", "required": True, "schema": {"type": "string"}}
_GET = {
    "/health": "Whether all is well: 503 while a pipeline starts, has failed or waits to start again.",
    "/health/live": "Whether the program answers.",
    "/health/ready": "The same as /health.",
    "/stats": "Figures of the whole program, in the shape of Iggy's connectors runtime.",
    "/metrics": "Metrics for Prometheus.",
    "/events": "Server-sent events: the list of pipelines, now and whenever it changes.",
    "/openapi.json": "This description.",
    "/jetstream": "JetStream servers with their streams and consumers, what is worst first.",
    "/pipelines": "Every pipeline, what is wrong first.",
    "/sources": "The same as /pipelines.",
    "/sinks": "The same as /pipelines.",
    "/pipelines/{key}": "One pipeline, with its batches, its shards, and the last hour.",
    "/pipelines/{key}/checkpoints": "The batches in its checkpoint.",
    "/pipelines/{key}/dead-letters": "Its newest dead letters.",
}
_POST = {
    "stop": "Stop it after the batch in hand.",
    "start": "Start it, where it is stopped or has failed.",
    "restart": "Stop it after the batch in hand, and start it again.",
    "rewind": "Set it back to a batch, a time or positions, and start it again if it ran.",
}


def description() -> dict[str, Any]:
    """OpenAPI 3.1. Orders need the key; off loopback, so do all figures."""
    paths: dict[str, Any] = {}
    for path, text in _GET.items():
        paths[path] = {"get": {"summary": text, "responses": _answers(*_codes(path))} | _of(path)}
    for verb, text in _POST.items():
        path = f"/pipelines/{{key}}/{verb}"
        order: dict[str, Any] = {
            "summary": text,
            "security": [{"key": []}],
            "responses": _answers("200", "400", "404", "409"),
        }
        if verb == "rewind":
            order["requestBody"] = {"content": {"application/json": {"schema": _REWIND}}}
        paths[path] = {"post": order | _of(path)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock", "version": __version__},
        "paths": paths,
        "components": {"securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "api-key"}}},
    }


_REWIND = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "batch": {"type": "integer", "description": "Back to the end of this batch."},
        "time": {"type": "string", "format": "date-time", "description": "Back to what was planned before."},
        "positions": {"type": "object", "description": "To these positions of the streams."},
        "new_query": {"type": "boolean", "description": "As a new query: sinks write it again."},
    },
}


def _codes(path: str) -> list[str]:
    """What a GET may be answered with."""
    if path in ("/health", "/health/ready"):
        return ["200", "503"]
    return ["200", *(["404"] if "{key}" in path else []), *(["409"] if "}/" in path else [])]


def _of(path: str) -> dict[str, Any]:
    return {"parameters": [_KEY]} if "{key}" in path else {}


def _answers(*codes: str) -> dict[str, Any]:
    texts = {
        "200": "As asked.", "400": "The body is wrong.", "401": "The key is missing.", "403": "Refused.",
        "404": "There is no such pipeline.", "409": "Refused, with the reason.", "421": "Asked by another name.",
        "503": "Not all is well.",
    }  # fmt: skip
    return {code: {"description": texts[code]} for code in (*codes, "401", "403", "421")}
