"""NATS subjects and filters: tokens, `*` for one token, `>` for one or more at the end. Pure functions on text."""

import re
from collections.abc import Iterable
from itertools import combinations


def intersect(left: str, right: str) -> str | None:
    """The filter that matches the subjects that both match; None where there are none."""
    a, b = left.split("."), right.split(".")
    both: list[str] = []
    for i in range(max(len(a), len(b))):
        if i < len(a) and a[i] == ">":
            return ".".join(both + b[i:]) if i < len(b) else None
        if i < len(b) and b[i] == ">":
            return ".".join(both + a[i:]) if i < len(a) else None
        if i >= len(a) or i >= len(b):
            return None
        if a[i] == "*":
            both.append(b[i])
        elif b[i] in ("*", a[i]):
            both.append(a[i])
        else:
            return None
    return ".".join(both)


def overlapping(filters: Iterable[str]) -> tuple[str, str] | None:
    """The first two filters that match a common subject; None where no two do."""
    return next(((a, b) for a, b in combinations(filters, 2) if intersect(a, b) is not None), None)


def problem(subject: str, *, wildcards: bool) -> str | None:
    """Why a subject is illegal, or a filter, with `wildcards`; None where it is legal."""
    tokens = subject.split(".")
    if "" in tokens:
        return "has an empty token"
    if any(c in subject for c in " \t\r\n\0"):
        return "has a space or control character"
    if ">" in tokens[:-1]:
        return "has '>' before its end"
    if not wildcards and any(token in ("*", ">") for token in tokens):
        return "has a wildcard"
    return None


def check_filters(filters: tuple[str, ...]) -> tuple[str, ...]:
    """The filters, unchanged. A ValueError where one is illegal or two overlap."""
    for text in filters:
        if why := problem(text, wildcards=True):
            raise ValueError(f"has '{text}', which {why}")
    if pair := overlapping(filters):
        raise ValueError(f"has '{pair[0]}' and '{pair[1]}', which overlap: messages would be read twice")
    return filters


def prefix_filter(prefix: str) -> str | None:
    """The narrowest filter that matches every subject that starts with `prefix`; None where that is all subjects.

    It may match more: filters have whole tokens, so that 'a.b' gives 'a.>'.
    """
    whole_tokens = prefix[: prefix.rfind(".") + 1]
    if not whole_tokens or "*" in whole_tokens or problem(whole_tokens + ">", wildcards=True) is not None:
        return None
    return whole_tokens + ">"


def as_regex(filters: Iterable[str]) -> str:
    """A regular expression that matches the subjects that any of the filters matches."""
    patterns = (
        r"\.".join({"*": "[^.]+", ">": ".+"}.get(token, re.escape(token)) for token in text.split("."))
        for text in filters
    )
    return f"^(?:{'|'.join(patterns)})$"
