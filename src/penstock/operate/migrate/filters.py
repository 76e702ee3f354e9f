"""Filters of streams: which of them take what is wanted, and nothing of what must be left alone. Pure functions on
text; knows subjects, nothing of who uses them.
"""

from collections.abc import Iterable, Sequence

from penstock.clients.nats.subjects import intersect

# A stream with more filters than this is nothing that somebody would maintain.
MOST_FILTERS = 200
_WILD = ("*", ">")


def is_private(subject: str) -> bool:
    """Whether a subject is one of a server's or of somebody's inbox: those are never stored."""
    return subject.startswith("$") or subject.split(".", 1)[0] == "_INBOX"


def is_within(narrow: str, wide: str) -> bool:
    """Whether `wide` matches every subject that `narrow` does."""
    return intersect(narrow, wide) == narrow


def widest(filters: Iterable[str]) -> list[str]:
    """The filters without those that another one covers, in their order."""
    kept: list[str] = []
    for text in dict.fromkeys(filters):
        if not any(is_within(text, other) for other in kept):
            kept = [*(other for other in kept if not is_within(other, text)), text]
    return kept


def watched(words: Sequence[str], taken: Sequence[str]) -> list[str]:
    """What to listen to before streams are made: what the user named, and all that the streams would take. What is
    private is left out, as it is never counted.
    """
    return widest([*words, *(text for text in taken if not is_private(text))])


def carve(wide: str, wanted: Sequence[str], avoided: Sequence[str]) -> list[str]:
    """Filters that together match what `wide` does, but nothing of `avoided`, and no subject of a server.

    NATS has no filter that leaves something out. So where `wide` must be split, only tokens of `wanted` are in the
    result: a subject that appears later, beside them, is not matched. Empty where nothing can be kept.
    """
    found = _carve(wide.split("."), wanted, avoided)
    return sorted(dict.fromkeys(found))


def _carve(tokens: list[str], wanted: Sequence[str], avoided: Sequence[str]) -> list[str]:
    text = ".".join(tokens)
    if tokens[0] not in _WILD and not any(intersect(text, other) for other in avoided):
        return [text]
    return [
        filter
        for child in _children(tokens, wanted, len(tokens))
        for filter in _carve(child.split("."), wanted, avoided)
    ]


def deepen(wide: str, depth: int, wanted: Sequence[str]) -> list[str]:
    """The filter as several that have no wildcard in their first `depth` tokens, by the tokens of `wanted`. Where these
    do not say, it stays as it is.
    """
    tokens = wide.split(".")
    children = _children(tokens, wanted, depth)
    if not children:
        return [wide]
    return sorted({filter for child in children for filter in deepen(child, depth, wanted)})


def _children(tokens: list[str], wanted: Sequence[str], depth: int) -> list[str]:
    """The filter with its first wildcard replaced by what `wanted` has there, if it is in the first `depth` tokens."""
    at = next((i for i, token in enumerate(tokens[:depth]) if token in _WILD), None)
    if at is None:
        return []
    head, tail = tokens[:at], tokens[at + 1 :]
    children = set()
    for text in wanted:
        words = text.split(".")
        if len(words) <= at or words[at] in _WILD or is_private(text) or intersect(".".join(tokens), text) is None:
            continue
        here = ".".join([*head, words[at]])
        if tokens[at] == "*":
            children.add(".".join([here, *tail]))
        else:
            children.add(here if len(words) == at + 1 else f"{here}.>")
    return sorted(children)


def prefix(filter: str, depth: int) -> tuple[str, ...]:
    """The first `depth` tokens before any wildcard: fewer where the filter has fewer."""
    words: list[str] = []
    for token in filter.split(".")[:depth]:
        if token in _WILD:
            break
        words.append(token)
    return tuple(words)


def grouped(filters: Sequence[str], wanted: Sequence[str]) -> dict[tuple[str, ...], list[str]]:
    """The filters by application: by their first token, or by the first two where the first is the same everywhere."""
    first = {prefix(text, 1) for text in filters}
    depth = 1 if len(first) > 1 else 2
    groups: dict[tuple[str, ...], list[str]] = {}
    for text in filters:
        for each in deepen(text, depth, wanted):
            groups.setdefault(prefix(each, depth), []).append(each)
    return {key: sorted(set(groups[key])) for key in sorted(groups)}
