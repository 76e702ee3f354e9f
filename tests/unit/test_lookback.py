"""Looking back from the end of a log: far enough, and no further."""

from penstock.kit.contract import Origin
from penstock.kit.lookback import Block, cannot_tell, look_back

OURS, OLDER = "ours", "older"


def look(
    log: list[str], *, first: int = 0, limit: int = 100, block: int = 10, gone: int = 0
) -> tuple[object, list[int]]:
    """The outcome for a log of words, of which the first ones are `gone`, and what was looked at."""
    seen: list[int] = []

    def one(low: int, high: int) -> Block:
        seen.extend(range(low, high))
        words = log[low:high]
        return Block(OURS in words or OLDER in words, OLDER in words, low >= gone)

    return look_back(len(log), lambda: first, one, limit=limit, block=block), seen


def test_the_last_record_settles_it_with_one_look() -> None:
    outcome, seen = look(["x"] * 50 + [OLDER])
    assert outcome == (50, True, True)
    assert seen == [50]


def test_records_of_others_are_looked_through_up_to_the_limit() -> None:
    outcome, seen = look([OLDER] + ["x"] * 500, limit=100)
    assert outcome == (401, False, True)
    assert len(seen) == 100


def test_the_limit_begins_anew_with_each_record_of_this_query() -> None:
    log = [OLDER, *["x"] * 80, OURS, *["x"] * 80, OURS, *["x"] * 80]
    assert look(log, limit=100)[0] == (0, True, True)


def test_a_log_without_a_record_of_this_query_is_looked_through_whole() -> None:
    outcome, seen = look(["x"] * 35)
    assert outcome == (0, False, True)
    assert sorted(seen) == list(range(35))


def test_nothing_before_the_first_record_is_asked_for() -> None:
    outcome, seen = look(["x"] * 35, first=20)
    assert outcome == (20, False, True)
    assert min(seen) == 20


def test_missing_records_end_the_look() -> None:
    assert look(["x"] * 35, gone=30) == ((24, False, False), [34, *range(24, 34)])


def test_an_empty_log_is_not_asked() -> None:
    assert look([]) == ((0, False, True), [])


def test_what_cannot_be_told_says_why_and_what_to_do() -> None:
    error = cannot_tell(Origin("q", 3, 1), "stream 's'", "it was trimmed", "Keep it longer.")
    assert "cannot tell whether partition 1 of batch 3 was written to stream 's' before: it was trimmed" in str(error)
    assert str(error).endswith("set delivery=at_least_once for one run. Keep it longer.")
