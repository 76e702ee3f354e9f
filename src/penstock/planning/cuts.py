"""Where a batch is cut into tasks of about equal rows, with few counts. Pure: knows no server, no Spark."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

from penstock.planning.positions import Range

# A source may pay for each position that it counts from: beyond so many cuts, those between lie evenly.
EXACT_CUTS = 64
# So few rows are cut exactly where the limits ask for it.
FEW_ROWS = 1000


class Tally:
    """How many rows of `span` lie before positions in it, counted where it matters: each count costs a request.

    `count` answers how many rows lie at or after each position, however far they go. Rows that arrive meanwhile lie
    behind the end of the span, which is counted anew in each call, last.
    """

    def __init__(self, count: Callable[[Sequence[int]], Sequence[int]], span: Range, rows: int):
        self.count, self.span, self.rows = count, span, rows
        self._known = {span.start: 0, span.end: rows}

    def locate(self, targets: Sequence[int], slack: int = 0, worst: int = 0) -> list[int]:
        """For each target t a position with t rows before it, give or take `slack`, and where that is hard to find
        up to the `worst`; never more than t without any slack.

        Targets must ascend, and so does the answer, whatever `count` says. Positions are guessed as if rows lay
        evenly between two that are known, and every third time halved, so that any rows are found in the end.
        """
        turn = 0
        while True:
            at = sorted(self._known)
            before = list(accumulate((self._known[position] for position in at), max))
            allowed = min(max(slack, worst), slack << max(0, turn - 1))
            found = [_bracket(at, before, target, allowed, halve=turn % 3 == 2) for target in targets]
            guesses = sorted({guess for guess, is_known in found if not is_known})
            if not guesses:
                return list(accumulate((position for position, _ in found), max))
            *after, beyond = self.count([*guesses, self.span.end])
            self._known |= {p: self.rows - (rows - beyond) for p, rows in zip(guesses, after, strict=True)}
            turn += 1


def _bracket(at: Sequence[int], before: Sequence[int], target: int, slack: int, halve: bool) -> tuple[int, bool]:
    """The position for a target, True; or the one to count next, False. `before` are the rows before each of `at`."""
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
    """Rows per task giving at least `at_least` tasks, and hardly more than need be."""
    total = sum(rows.values())
    size = max(1, -(-total // at_least))
    # Rounded up, 5 rows in 4 tasks would be 3, and rows of many shards are packed together.
    exact = len(rows) == 1 and -(-total // size) >= at_least
    return max(1, min(most, size if exact else total // at_least))


def cut(tally: Tally, end: int, rows: int, per_task: int, most: int) -> list[int]:
    """The inner positions that cut the `rows` up to `end` into tasks of about `per_task`, and never more than `most`:
    off by a tenth where that is easily found, and by a quarter at worst.

    To be exact takes many counts. So a batch of many rows that would fill its tasks to the last row gets a few more.
    """
    parts = -(-rows // per_task)
    if rows > FEW_ROWS and rows > 0.96 * most * parts:
        parts = -(-rows // int(0.95 * most))
    part = rows / max(1, parts)
    worst = int(max(0, min(part / 4, (most - part) / 2)))
    anchors = min(parts, EXACT_CUTS)
    targets = [rows * number // anchors for number in range(1, anchors)]
    found = tally.locate(targets, min(worst, int(part / 10)), worst)
    if anchors == parts:
        return found
    edges = [tally.span.start, *found, end]
    at = [anchors * number / parts for number in range(1, parts)]
    return [edges[int(x)] + int((edges[int(x) + 1] - edges[int(x)]) * (x % 1)) for x in at]
