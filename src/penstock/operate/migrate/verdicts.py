"""What a proof found, in sentences. Pure."""

from collections.abc import Iterable, Iterator, Sequence

from penstock.clients.nats.subjects import intersect
from penstock.operate.migrate.proof import Verdict
from penstock.operate.migrate.proving import Part, Proven

# How many subjects without a stream are named.
SHOWN = 5


def lines(proven: Proven) -> Iterator[str]:
    """What holds, what does not, and what is not known."""
    for number, part in enumerate(proven.parts, start=1):
        head = f"part {number}, {part.seconds:.1f} s: " if len(proven.parts) > 1 else f"{part.seconds:.1f} s: "
        for verdict in part.verdicts:
            yield head + sentence(verdict)
            yield from _details(verdict)
        if part.is_full:
            yield (
                f"the proof ended before its time, as {part.interruption} and more do not fit into memory: what is "
                "said above is of the time before, and of what came later nothing is known."
            )
        elif part.interruption:
            yield (
                f"our own subscription was interrupted ({part.interruption}): what is said above is of the time "
                "before, and of what came between two parts nothing is known."
            )
        yield from _unasked(part)
    if proven.without_stream:
        yield without_stream(proven.without_stream)
    yield from dict.fromkeys(proven.remarks)


def unstored(heard: Iterable[str], wanted: Sequence[str], taken: Sequence[str], left_out: Sequence[str]) -> list[str]:
    """The subjects that were heard and asked for, and that no stream takes. Those that were left out are told before,
    with the reason.
    """

    def matches(subject: str, filters: Sequence[str]) -> bool:
        return any(intersect(subject, text) for text in filters)

    return sorted(each for each in heard if matches(each, wanted) and not matches(each, [*taken, *left_out]))


def without_stream(subjects: Sequence[str]) -> str:
    """What it means that nothing stores these."""
    others = len(subjects) - SHOWN
    more = f" and {others:,} others" if others > 1 else " and 1 other" if others == 1 else ""
    return (
        f"no stream takes {', '.join(subjects[:SHOWN])}{more}: what is published there is not stored, and nothing is "
        "proven of it. Make a stream for it (--apply makes those of the plan), or name narrower subjects."
    )


def sentence(verdict: Verdict) -> str:
    """One stream, in one sentence."""
    where = f"'{verdict.stream}', sequences {verdict.start + 1:,} to {verdict.end:,}"
    if not verdict.stored and not verdict.got:
        return f"'{verdict.stream}': nothing was published, so nothing is proven."
    if not verdict.holds:
        return (
            f"{where}: NOT PROVEN. The stream lacks {verdict.lost:,} of {verdict.got:,} messages that a plain "
            f"subscriber got, and a plain subscriber did not get {verdict.unheard:,} of {verdict.stored:,} that are "
            "stored."
        )
    if not verdict.whole:
        return (
            f"{where}: proven in part. The stream has {verdict.stored:,} messages, and a plain subscriber got "
            f"{verdict.got:,}: none is known to be lost, but not all of them can be compared."
        )
    order = (
        "in the same order on each subject"
        if not verdict.disordered
        else f"in another order on {verdict.disordered:,} subjects, as with several publishers on one subject"
    )
    return (
        f"{where}: {verdict.stored:,} messages, a plain subscriber got all of them; it got {verdict.got:,}, and the "
        f"stream has all of those; {order}."
    )


def _details(verdict: Verdict) -> Iterator[str]:
    if verdict.lost:
        shown = ", ".join(dict.fromkeys(verdict.not_stored))
        yield f"  not stored: on {shown}{', ...' if verdict.lost > len(verdict.not_stored) else ''}"
    if verdict.unheard:
        shown = ", ".join(f"{number:,}" for number in verdict.not_got)
        yield f"  not delivered: sequences {shown}{', ...' if verdict.unheard > len(verdict.not_got) else ''}"
    if verdict.repeated:
        yield (
            f"  {verdict.repeated:,} messages were published again with an id that the stream has: it keeps the first, "
            "and a plain subscriber gets each."
        )
    if verdict.removed:
        yield (
            f"  {verdict.removed:,} sequences have no message any more: limits of the stream, or somebody, removed "
            "them, and they cannot be compared."
        )
    if verdict.doubtful:
        yield (
            f"  of {verdict.doubtful:,} messages it cannot be told whether they are missing: others that are equal, or "
            "have the same id, came at about the same time."
        )


def _unasked(part: Part) -> Iterator[str]:
    if part.unasked:
        yield (
            f"these servers could not be asked whether they knew of our subscription: {', '.join(part.unasked)}. What "
            "was published there in the first moments may be missing above without being lost."
        )
