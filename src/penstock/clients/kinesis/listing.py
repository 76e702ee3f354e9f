"""All streams of a region, with their shards. Knows ListStreams and DescribeStreamSummary; reads no records."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from penstock.clients.kinesis.calls import Calls, GoneError
from penstock.errors import ProtocolError


class Listed(NamedTuple):
    """A stream in the list."""

    name: str
    status: str
    shards: int  # those that take records
    retention: int  # hours


def listed(name: str, answer: Mapping[str, Any]) -> Listed:
    """A stream, from the answer to DescribeStreamSummary."""
    summary = answer["StreamDescriptionSummary"]
    try:
        return Listed(
            name, str(summary["StreamStatus"]), int(summary["OpenShardCount"]), int(summary["RetentionPeriodHours"])
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"Kinesis describes '{name}' in a way that cannot be read: {error!r}.") from None


def listing(calls: Calls) -> list[Listed]:
    """All streams, by name. One that is deleted meanwhile is left out; Kinesis takes about ten questions a second."""
    retry = calls.options.retry("listing streams")
    names: list[str] = []
    while True:
        more = {"ExclusiveStartStreamName": names[-1]} if names else {}
        answer = retry.run(partial(calls.ask, "list_streams", **more))
        new = [name for name in answer["StreamNames"] if name not in names]
        names += new
        if not answer.get("HasMoreStreams") or not new:
            break
    found = []
    for name in names:
        try:
            answer = retry.run(partial(calls.ask, "describe_stream_summary", StreamName=name))
        except GoneError:
            continue
        found.append(listed(name, answer))
    return sorted(found)
