import re
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.clients.nats.subjects import intersect, overlapping, prefix_filter, problem
from penstock.connectors.jetstream import MOST_SUBJECTS, JetStream
from penstock.connectors.jetstream.options import JetStreamOptions
from penstock.kit.contract import Predicate


def words(tokens: str | list[str], longest: int) -> list[str]:
    return [".".join(some) for n in range(1, longest + 1) for some in product(tokens, repeat=n)]


def matches(text: str, subject: str) -> bool:
    """What a filter matches, by the rules of NATS, without any algebra."""
    pattern = re.escape(text).replace(r"\*", r"[^.]+").replace(">", ".+")
    return re.fullmatch(pattern, subject) is not None


# All filters of up to 4 tokens, and all subjects up to one token longer, so that every '>' has something to match.
FILTERS = [f for f in words("ab*>", 4) if ">" not in f[:-1]]
SUBJECTS = words("abc", 5)


def seen_by(text: str, subjects: list[str]) -> int:
    """The subjects that match, as bits of a number."""
    pattern = re.compile(re.escape(text).replace(r"\*", r"[^.]+").replace(">", ".+"))
    return sum(1 << i for i, subject in enumerate(subjects) if pattern.fullmatch(subject))


SEEN = {text: seen_by(text, SUBJECTS) for text in FILTERS}


def test_an_intersection_matches_what_both_filters_match() -> None:
    for left, right in product(FILTERS, FILTERS):
        both = intersect(left, right)
        if both is None:
            assert not SEEN[left] & SEEN[right], (left, right)
        else:
            assert SEEN[both] == SEEN[left] & SEEN[right], (left, right, both)
            assert SEEN[both], (left, right, both)


def test_filters_overlap_where_a_subject_matches_two() -> None:
    for left, right in combinations(FILTERS, 2):
        expected = (left, right) if SEEN[left] & SEEN[right] else None
        assert overlapping([left, right]) == expected


@given(st.lists(st.sampled_from(FILTERS), max_size=6))
def test_the_first_two_that_overlap_are_named(filters: list[str]) -> None:
    pairs = [(a, b) for a, b in combinations(filters, 2) if SEEN[a] & SEEN[b]]
    assert overlapping(filters) == (pairs[0] if pairs else None)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("foo.*", "foo.bar", "foo.bar"),
        ("foo.*", "foo.bar.baz", None),
        ("foo.>", "foo", None),
        ("foo.>", "foo.bar.baz", "foo.bar.baz"),
        ("*.bar", "foo.*", "foo.bar"),
        ("*.>", ">", "*.>"),
        ("foo.*.>", "foo.>", "foo.*.>"),
        ("foo.*.c", "*.b.>", "foo.b.c"),
        ("foo", "foobar", None),
        (">", ">", ">"),
    ],
)
def test_examples_of_intersections(left: str, right: str, expected: str | None) -> None:
    assert intersect(left, right) == expected
    assert intersect(right, left) == expected


# Legality

LEGAL_TOKEN = r"[^. \t\r\n\0]+"
LEGAL = re.compile(rf"{LEGAL_TOKEN}(\.{LEGAL_TOKEN})*")


@pytest.mark.parametrize("wildcards", [True, False])
def test_a_legal_subject_has_no_problem_and_an_illegal_one_has(wildcards: bool) -> None:
    for n in range(6):
        for letters in product("a.*> ", repeat=n):
            subject = "".join(letters)
            tokens = subject.split(".")
            legal = bool(LEGAL.fullmatch(subject)) and ">" not in tokens[:-1]
            if not wildcards:
                legal = legal and "*" not in tokens and ">" not in tokens
            assert (problem(subject, wildcards=wildcards) is None) == legal, subject


@pytest.mark.parametrize(
    ("subject", "wildcards", "why"),
    [
        ("", True, "has an empty token"),
        ("a..b", True, "has an empty token"),
        (".a", True, "has an empty token"),
        ("a.", True, "has an empty token"),
        ("a b", True, "has a space or control character"),
        ("a\tb", True, "has a space or control character"),
        ("a\r\nPUB b 0", True, "has a space or control character"),
        ("a\0", True, "has a space or control character"),
        ("a.>.b", True, "has '>' before its end"),
        ("a.*", False, "has a wildcard"),
        (">", False, "has a wildcard"),
        # A wildcard is a whole token; as part of one it is a letter like any other.
        ("a*.b>", False, None),
        ("a.*.>", True, None),
        ("$KV.bucket.key", False, None),
    ],
)
def test_a_problem_is_said(subject: str, wildcards: bool, why: str | None) -> None:
    assert problem(subject, wildcards=wildcards) == why


# Prefixes

LONG_TOKENS = ["a", "b", "ab", "bb"]
LONG_SUBJECTS = words(LONG_TOKENS, 4)
LONG_FILTERS = [f for f in words([*LONG_TOKENS, "*", ">"], 3) if ">" not in f[:-1]]


def test_a_prefix_filter_is_the_narrowest_that_matches_every_subject_with_the_prefix() -> None:
    seen = {text: seen_by(text, LONG_SUBJECTS) for text in LONG_FILTERS}
    # Of up to two tokens, so that every prefix has longer subjects to begin.
    prefixes = {subject[:n] for subject in words(LONG_TOKENS, 2) for n in range(len(subject) + 1)}
    prefixes |= {subject + "." for subject in words(LONG_TOKENS, 2)}
    for prefix in prefixes:
        wanted = sum(1 << i for i, subject in enumerate(LONG_SUBJECTS) if subject.startswith(prefix))
        covering = [mask for mask in seen.values() if wanted & mask == wanted]
        assert seen[prefix_filter(prefix) or ">"] == min(covering, key=int.bit_count), prefix


def test_no_prefix_however_odd_excludes_a_subject() -> None:
    for n in range(6):
        for letters in product("ab.*> ", repeat=n):
            prefix = "".join(letters)
            text = prefix_filter(prefix)
            if text is None:
                continue
            assert problem(text, wildcards=True) is None, prefix
            for subject in SUBJECTS:
                assert not subject.startswith(prefix) or matches(text, subject), (prefix, text, subject)


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("orders.eu.", "orders.eu.>"),
        ("orders.e", "orders.>"),
        ("orders.", "orders.>"),
        ("orders", None),
        ("", None),
        (".", None),
        ("a..b", None),
        ("a.>.b", None),
        ("a b.c", None),
    ],
)
def test_examples_of_prefixes(prefix: str, expected: str | None) -> None:
    assert prefix_filter(prefix) == expected


# What a query's WHERE does to the filters

ROWS = words("abc", 4)
ODD_VALUES = ["", ".", "a.", ".a", "a..b", "a b", "a.*", "*", ">", "a.>", "A", "abc"]
PREDICATES = st.lists(
    st.one_of(
        st.builds(lambda v: Predicate("subject", "=", v), st.sampled_from(ROWS + ODD_VALUES)),
        st.builds(
            lambda v: Predicate("subject", "in", tuple(v)),
            st.lists(st.sampled_from(ROWS) | st.sampled_from(ODD_VALUES), min_size=1, max_size=5),
        ),
        st.builds(lambda v: Predicate("subject", "startswith", v), st.sampled_from(ROWS + ODD_VALUES)),
        st.builds(lambda v: Predicate("subject", "startswith", v[:3]), st.sampled_from(ROWS)),
        st.sampled_from(
            [
                Predicate("subject", ">", "b"), Predicate("subject", "<=", "b.c"), Predicate("sequence", "=", 5),
                Predicate("stream", "=", "a"), Predicate("stream", "startswith", "b."),
            ]
        ),
    ),
    max_size=4,
)  # fmt: skip


def apart(filters: list[str]) -> tuple[str, ...]:
    """As many of them as do not overlap."""
    kept: list[str] = []
    for text in filters:
        if overlapping([*kept, text]) is None:
            kept.append(text)
    return tuple(kept)


OWN_FILTERS = st.lists(st.sampled_from(FILTERS), max_size=4).map(apart)


def holds(predicate: Predicate, subject: str) -> bool:
    """Whether a row of this subject can satisfy the predicate; one on another column it always can."""
    if predicate.column != "subject":
        return True
    value = predicate.value
    return {
        "=": lambda: subject == value,
        "in": lambda: subject in value,
        "startswith": lambda: subject.startswith(value),
        ">": lambda: subject > value,
        "<=": lambda: subject <= value,
    }[predicate.test]()


def reads(options: JetStreamOptions, subject: str) -> bool:
    return not options.subjects or any(matches(text, subject) for text in options.subjects)


@settings(max_examples=100)
@given(OWN_FILTERS, PREDICATES)
def test_narrowing_excludes_no_row_that_the_query_wants(own: tuple[str, ...], predicates: list[Predicate]) -> None:
    options = JetStreamOptions(stream=("S",), subjects=own)
    narrowed = JetStream.narrow(options, predicates)
    wanted = [s for s in ROWS if reads(options, s) and all(holds(p, s) for p in predicates)]
    if narrowed is None:
        assert wanted == []
        return
    assert [s for s in wanted if not reads(narrowed, s)] == []
    assert [s for s in ROWS if reads(narrowed, s) and not reads(options, s)] == [], "never more than the user asked for"
    assert overlapping(narrowed.subjects) is None, "a message would be read twice"
    assert all(problem(text, wildcards=True) is None for text in narrowed.subjects)
    assert len(narrowed.subjects) <= max(MOST_SUBJECTS, len(own))
    assert narrowed.is_narrowed or narrowed.subjects == own


@pytest.mark.parametrize(
    ("own", "predicates", "expected"),
    [
        ((), [("=", "a.b")], ("a.b",)),
        ((), [("in", ("a.b", "a.c", "a.b"))], ("a.b", "a.c")),
        ((), [("startswith", "a.b")], ("a.>",)),
        ((), [("startswith", "a")], ()),
        (("a.>",), [("=", "a.b")], ("a.b",)),
        (("a.>", "b.>"), [("startswith", "a.")], ("a.>",)),
        (("a.*.c",), [("startswith", "a.b.")], ("a.b.c",)),
        (("a.>",), [("=", "b.c")], None),
        ((), [("=", "a.b"), ("=", "a.c")], None),
        ((), [("startswith", "a."), ("in", ("a.x", "b.x"))], ("a.x",)),
        ((), [("=", "")], ()),
        # One value that no subject can have does not rule out the others.
        ((), [("in", ("", "a.b"))], ()),
        (("a.>",), [("in", ("a b", "a.b"))], ("a.>",)),
        # A server stores what is published on 'a.*', and no filter finds only that.
        ((), [("=", "a.*")], ()),
    ],
)
def test_examples_of_narrowing(
    own: tuple[str, ...], predicates: list[tuple[str, object]], expected: tuple[str, ...] | None
) -> None:
    options = JetStreamOptions(stream=("S",), subjects=own)
    asked = [Predicate("subject", test, value) for test, value in predicates]  # type: ignore[arg-type]
    narrowed = JetStream.narrow(options, asked)
    assert (None if narrowed is None else narrowed.subjects) == expected


def test_more_subjects_than_a_consumer_should_filter_by_do_not_narrow() -> None:
    options = JetStreamOptions(stream=("S",), subjects=("a.>",))
    few = Predicate("subject", "in", tuple(f"a.{i}" for i in range(MOST_SUBJECTS)))
    many = Predicate("subject", "in", tuple(f"a.{i}" for i in range(MOST_SUBJECTS + 1)))
    narrowed = JetStream.narrow(options, [few])
    assert narrowed is not None
    assert len(narrowed.subjects) == MOST_SUBJECTS
    assert narrowed.is_narrowed
    unchanged = JetStream.narrow(options, [many])
    assert unchanged is not None
    assert unchanged.subjects == ("a.>",)
    assert not unchanged.is_narrowed


def test_a_query_without_conditions_is_not_narrowed() -> None:
    options = JetStreamOptions(stream=("S",), subjects=("a.>",))
    assert JetStream.narrow(options, []) is options
