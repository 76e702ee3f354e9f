"""What went wrong, in a sentence: ours or Spark's, out of the text around it, in words of the file. Pure text."""

import re

from penstock.errors import OptionError, PenstockError
from penstock.pipelines.pipeline import Pipeline
from penstock.spark.said import said
from penstock.spark.sentence import found


def sentence(problem: BaseException) -> str:
    """What went wrong, in one sentence: ours where the error is one of ours, else the first line of Spark's."""
    return said(str(problem)) or type(problem).__name__


def is_of_the_file(problem: BaseException) -> bool:
    """Whether another start can only end in the same way: the file must be changed first."""
    if isinstance(problem, PenstockError):
        return isinstance(problem, OptionError)
    if ours := found(str(problem)):
        return ours.kind == "OptionError"
    return type(problem).__name__ in ("AnalysisException", "ParseException")


# A sink that knows a write again, of other rows than it has; and what it adds for users of foreachBatch.
_OTHER_ROWS = re.compile(r"(?s)partition \d+ of batch (\d+) was written before with other rows: (.*?)\. A query must")
_RULES = re.compile(r"(?s) Here the query is txnAppId '[0-9a-f-]{36}-(\S+)', and the batch is txnVersion \d+\..*")


def in_its_words(told: str, pipeline: Pipeline) -> str:
    """The sentence as the user of a pipeline reads it, who wrote no foreachBatch and no txnAppId."""
    rules, other = _RULES.search(told), _OTHER_ROWS.search(told)
    sink, first = pipeline.sinks[0].name, 0
    if rules is not None:
        told, sink = told[: rules.start()], rules[1]
        if sink not in (each.name for each in (*pipeline.sinks, pipeline.dead_letters) if each is not None):
            sink, _, since = sink.rpartition("-")  # it begins with a later batch than the pipeline
            first = int(since)
    if other is None:
        return f"the sink '{sink}', which counts from batch {first}: {told}" if rules is not None else told
    batch = int(other[1]) + first
    return (
        f"batch {batch} is half done: the sink '{sink}' has rows of it, and now they are others ({other[2]}). Was the "
        "file changed since, a function, or a table that it uses? Put it back, run the pipeline until batch "
        f"{batch} is done, and then change it. If not, take out what differs from run to run (rand, now, unordered "
        'limits), or set delivery = "at_least_once" in the sink, which then has rows of this batch twice.'
    )
