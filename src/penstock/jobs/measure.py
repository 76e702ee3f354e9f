"""How far the query of a checkpoint is behind: its last finished batch against the servers. Knows checkpoints and what
can be asked for ends; knows no server, no Spark.
"""

import json
from collections.abc import Mapping

from penstock.checkpoints.entries import Offset
from penstock.checkpoints.log import Log
from penstock.connectors import FORMATS
from penstock.errors import OptionError, nearest
from penstock.jobs.brokers import KafkaHeads
from penstock.jobs.heads import Heads, OurHeads
from penstock.jobs.lag import KINDS, Report, Standing, chosen
from penstock.planning.checkpoint import Checkpoint
from penstock.planning.positions import Position

# How often a checkpoint is read anew where something seems lost and the query has moved on in between: it may be the
# query itself that has released what it read.
LOOKS = 3


def measure(location: str, format: str | None, given: Mapping[str, str]) -> Report:
    """How far the query of a checkpoint is behind. An OptionError where there is no checkpoint, or no such format."""
    log = Log(location)
    if format is None:
        raise OptionError(_no_format(log))
    heads = _heads(format, given)
    for look in range(1, LOOKS + 1):
        report = _measured(log, format, heads)
        if look == LOOKS or not any(each.problem for each in report.standings):
            break
        log = Log(location)
        if log.last_committed == report.batch:
            break
    return report


def _heads(format: str, given: Mapping[str, str]) -> Heads:
    if format == "kafka":
        return KafkaHeads(given)
    if format not in FORMATS:
        raise OptionError(
            f"how far a query is behind can be told of {', '.join(FORMATS)} and kafka, not of '{format}'. "
            f"{nearest(format, [*FORMATS, 'kafka'])}"
        )
    return OurHeads(format, given)


def _measured(log: Log, format: str, heads: Heads) -> Report:
    batch = log.last_committed
    if batch is None:
        begun = "one is begun" if log.planned else "none is begun"
        return Report(log.where, log.query_id, None, remarks=[f"the query has not finished a batch yet, {begun}."])
    offsets = log.entry(batch).offsets()
    of_kind = [
        o for o in offsets.values() if o is not None and o.kind == ("kafka" if format == "kafka" else "penstock")
    ]
    mine, remarks = chosen(offsets, format, heads.shards() if len(of_kind) > 1 else ())
    if not of_kind:
        remarks.append(
            f"no source of the query has positions of {KINDS['kafka' if format == 'kafka' else 'penstock']}."
        )
    standings: list[Standing] = []
    for name, offset in mine.items():
        found, more = heads.compare(name, _checkpoint(offset))
        standings += found
        remarks += more
    return Report(log.where, log.query_id, batch, standings, remarks)


def _checkpoint(offset: Offset) -> Checkpoint:
    if offset.kind == "penstock":
        return Checkpoint.decode(json.loads(offset.text))
    return Checkpoint({shard: Position(at) for shard, at in (offset.positions or {}).items()})


def _no_format(log: Log) -> str:
    """What to say where nobody said what the query reads."""
    number = log.last_planned
    kinds = {o.kind for o in log.entry(number).offsets().values() if o is not None} if number is not None else set()
    has = (
        f"it has positions of {' and of '.join(KINDS[kind] for kind in sorted(kinds))}" if kinds else "it has none yet"
    )
    example = "kafka kafka.bootstrap.servers=HOST" if kinds == {"kafka"} else "jetstream stream=ORDERS servers=HOST"
    return (
        f"a checkpoint does not say what its query reads, only how far ({has}). Add the format and the options of the "
        f"query: penstock lag {log.where} {example}. Or name the file of a pipeline."
    )
