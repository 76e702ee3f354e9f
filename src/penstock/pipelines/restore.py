"""A checkpoint set back as a pipeline needs it: what its sinks remember, and `restore_from_checkpoint` and
`restore_from_batch` of its file, each done once. Knows checkpoints; no Spark and no servers.
"""

import json

from penstock.checkpoints import storage
from penstock.checkpoints.log import Log
from penstock.checkpoints.rewind import SinkMemory, rewind
from penstock.errors import OptionError
from penstock.kit.contract import Guarantee
from penstock.pipelines.job import SINKS
from penstock.pipelines.pipeline import FILES, Pipeline

RESTORED = "penstock.restored"  # what was restored already


def memories(pipeline: Pipeline) -> list[SinkMemory]:
    """What each sink does with rows that are written again."""
    is_one_write = pipeline.is_one_write and SINKS not in storage.folder(pipeline.location).names()
    listed = []
    for sink in (*pipeline.sinks, *([pipeline.dead_letters] if pipeline.dead_letters else [])):
        is_by_epoch = is_one_write and sink.type == "iceberg"  # which leaves out what it has of a query
        if sink.exactly_once is not Guarantee.NO and (sink.kind.ours or sink.kind.txn or is_by_epoch):
            listed.append(SinkMemory(sink.name, "remembers"))
        elif sink.type in FILES and is_one_write:
            listed.append(SinkMemory(sink.name, "skips-files"))
        elif sink.type in FILES:
            listed.append(SinkMemory(sink.name, "by-batch"))
        else:
            listed.append(SinkMemory(sink.name, "again"))
    return listed


def restore(pipeline: Pipeline) -> str | None:
    """What was restored, in words; None where the file asks for nothing, or it was done before. The checkpoint must not
    be in use.
    """
    wanted = pipeline.checkpoint
    folder = storage.folder(pipeline.location)
    try:
        done = json.loads(folder.read(RESTORED) or b"{}")
    except ValueError:
        raise OptionError(
            f"the file {RESTORED} of checkpoint '{pipeline.location}' is damaged. It says what was restored already: "
            "remove it if restore_from_checkpoint and restore_from_batch are not set."
        ) from None
    said = []
    if wanted.restore_from_checkpoint is not None and done.get("checkpoint") != wanted.restore_from_checkpoint:
        source = Log(wanted.restore_from_checkpoint).folder
        if "metadata" in folder.names():
            raise OptionError(
                f"restore_from_checkpoint is '{wanted.restore_from_checkpoint}', but '{pipeline.location}' holds a "
                "checkpoint already. Leave the key out to go on from there, or name another location."
            )
        names = [name for name in source.files() if name == SINKS or not name.startswith("penstock.")]
        source.copy(folder, [name for name in names if name != "metadata"])
        source.copy(folder, ["metadata"])  # last: a copy that was cut off has none, and is made again
        done["checkpoint"] = wanted.restore_from_checkpoint
        said.append(f"begins with a copy of the checkpoint '{wanted.restore_from_checkpoint}'")
    if wanted.restore_from_batch is not None and done.get("batch") != wanted.restore_from_batch:
        went = rewind(pipeline.location, wanted.restore_from_batch, sinks=memories(pipeline))
        done["batch"] = wanted.restore_from_batch
        said.append(f"is back at the end of batch {went.kept}" + (f" (before: {went.copy})" if went.copy else ""))
    if said:
        folder.write(RESTORED, json.dumps(done).encode())
    return " and ".join(said) or None
