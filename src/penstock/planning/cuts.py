"""Where a batch is cut into tasks of about equal rows, with few counts. Pure: knows no server, no Spark."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

from penstock.planning.positions import Range

# Cuts that are counted, as each may cost a request. Further cuts lie evenly between these.
EXACT_CUTS = 64
# Up to this many rows, tasks may be filled to the last row.
FEW_ROWS = 1000


class Tally:
    """How many of the `rows` in `span` lie before a position. Counts few positions, as each may cost a request.

    `count` gives the rows at or after each position, also those behind the span. So the end of the span is counted in
    each call too, last: rows that arrive meanwhile change nothing.
    """

    def __init__(self, count: Callable[[Sequence[int]], Sequence[int]], span: Range, rows: int):
        self.count, self.span, self.rows = count, span, rows
        self._known = {span.start: 0, span.end: rows}

    def locate(self, targets: Sequence[int], slack: int = 0, worst: int = 0) -> list[int]:
        """For each target, a position with that many rows before it. It may be off by `slack` rows, and by up to
        `worst` where it is hard to find. With a slack of 0, never more rows than the target.

        Targets must ascend, and so do the positions. A guess takes rows to lie evenly between two known positions;
        every third guess halves the gap, so that the search always ends.
        """
        turn = 0
        while True:
            at = sorted(self._known)
            before = list(accumulate((self._known[position] for position in at), max))
            allowed = min(max(slack, worst), slack << max(0, turn - 1))
            steps = [_bracket(at, before, target, allowed, halve=turn % 3 == 2) for target in targets]
            guesses = sorted({position for position, is_known in steps if not is_known})
            if not guesses:
                return list(accumulate((position for position, _ in steps), max))
            *after, beyond = self.count([*guesses, self.span.end])
            self._known |= {p: self.rows - (rows - beyond) for p, rows in zip(guesses, after, strict=True)}
            turn += 1


def _bracket(at: Sequence[int], before: Sequence[int], target: int, slack: int, halve: bool) -> tuple[int, bool]:
    """The position for a target, and True; or the position to count next, and False.

    `before` has the number of rows before each position of `at`.
    """
    high = bisect_right(before, target)
    if high == len(at):
        return at[-1], True
    low = high - 1
    missing, beyond, gap = target - before[low], before[high] - target, at[high] - at[low]
    if gap <= 1 or min(missing, beyond) <= slack:
        return (at[high] if beyond <= min(slack, missing - 1) else at[low]), True
    share = 0.5 if halve else (missing + 0.5) / (missing + beyond)
    return at[low] + max(1, min(gap - 1, round(gap * share))), False


def rows_per_task(rows: Mapping[str, int], most: int, at_least: int) -> int:
    """Rows of a task, so that there are `at_least` tasks or a few more, and none has more than `most` rows."""
    total = sum(rows.values())
    size = max(1, -(-total // at_least))
    # Rounded up, 5 rows for 4 tasks would make 3 tasks. With many shards, small ones share a task.
    exact = len(rows) == 1 and -(-total // size) >= at_least
    return max(1, min(most, size if exact else total // at_least))


def cut(tally: Tally, end: int, rows: int, per_task: int, most: int) -> list[int]:
    """The positions that cut the `rows` up to `end` into tasks of about `per_task` rows, and never more than `most`.

    Tasks are off by a tenth, and by a quarter at worst, as exact cuts take many counts. So where many rows would fill
    every task to the last row, there are a few more tasks.
    """
    parts = -(-rows // per_task)
    if rows > FEW_ROWS and rows > 0.96 * most * parts:
        parts = -(-rows // int(0.95 * most))
    part = rows / max(1, parts)
    worst = int(max(0, min(part / 4, (most - part) / 2)))
    anchors = min(parts, EXACT_CUTS)
    targets = [rows * number // anchors for number in range(1, anchors)]
    cuts = tally.locate(targets, min(worst, int(part / 10)), worst)
    if anchors == parts:
        return cuts
    edges = [tally.span.start, *cuts, end]
    at = [anchors * number / parts for number in range(1, parts)]
    return [edges[int(x)] + int((edges[int(x) + 1] - edges[int(x)]) * (x % 1)) for x in at]
