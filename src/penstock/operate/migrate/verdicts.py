"""What a proof found, in sentences. Pure."""

from collections.abc import Iterator

from penstock.operate.migrate.proof import Verdict
from penstock.operate.migrate.proving import Part, Proven


def lines(proven: Proven) -> Iterator[str]:
    """What holds, what does not, and what is not known."""
    for number, part in enumerate(proven.parts, start=1):
        head = f"part {number}, {part.seconds:.1f} s: " if len(proven.parts) > 1 else f"{part.seconds:.1f} s: "
        for verdict in part.verdicts:
            yield head + sentence(verdict)
            yield from _details(verdict)
        if part.interruption:
            yield (
                f"our own subscription was interrupted ({part.interruption}): what is said above is of the time "
                "before, and of what came between two parts nothing is known."
            )
        yield from _unasked(part)
    yield from dict.fromkeys(proven.remarks)


def sentence(verdict: Verdict) -> str:
    """One stream, in one sentence."""
    where = f"'{verdict.stream}', sequences {verdict.start + 1:,} to {verdict.end:,}"
    if not verdict.stored and not verdict.got:
        return f"'{verdict.stream}': nothing was published, so nothing is proven."
    if not verdict.holds:
        return (
            f"{where}: NOT PROVEN. The stream lacks {verdict.lacking:,} of {verdict.got:,} messages that a plain "
            f"subscriber got, and a plain subscriber did not get {verdict.unheard:,} of {verdict.stored:,} that are "
            "stored."
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
    if verdict.lacking:
        shown = ", ".join(dict.fromkeys(verdict.not_stored))
        yield f"  not stored: on {shown}{', ...' if verdict.lacking > len(verdict.not_stored) else ''}"
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


def _unasked(part: Part) -> Iterator[str]:
    if part.unasked:
        yield (
            f"these servers could not be asked whether they knew of our subscription: {', '.join(part.unasked)}. What "
            "was published there in the first moments may be missing above without being lost."
        )
