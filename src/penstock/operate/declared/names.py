"""The server's rules for names of streams, consumers and buckets, for files and command lines alike. Pure."""

from collections.abc import Collection, Iterator, Sequence

from penstock.errors import nearest

_MOST = 255  # bytes


def problem(name: str, what: str, *, is_bucket: bool = False) -> str:
    """Why something, such as a "stream", cannot have this name; empty where it can. The server never answers where a
    name has a dot or a space: its API has names in subjects.
    """
    if not name or any(c in name for c in " \t\r\n\f.*>\\/") or not name.isprintable():
        return f"a {what} cannot be called {name!r}: no spaces, and none of . * > / \\"
    if len(name.encode()) > _MOST:
        return f"the name of a {what} has at most {_MOST} bytes; {name[:20]!r}... has {len(name.encode())}."
    if is_bucket and not all(c.isascii() and (c.isalnum() or c in "_-") for c in name):
        return f"a bucket cannot be called {name!r}: letters, digits, - and _ only."
    return ""


def permission_problem(name: str) -> str:
    """Why --allow-replace cannot have this name, STREAM or STREAM/CONSUMER; empty where it can."""
    stream, slash, consumer = name.partition("/")
    return problem(stream, "stream") or (problem(consumer, "consumer") if slash else "")


def not_planned(allowed: Sequence[str], planned: Collection[str]) -> Iterator[str]:
    """Permissions for names that a plan does not have, in sentences: they may be mistyped."""
    for name in allowed:
        if name not in planned:
            yield f"--allow-replace {name} allows nothing: the files do not have that name. {nearest(name, planned)}"
