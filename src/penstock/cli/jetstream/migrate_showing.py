"""What `penstock jetstream migrate` shows, and the files that it writes. Knows rich."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli.pipelines import console
from penstock.errors import OptionError
from penstock.kit.masking import harmless

if TYPE_CHECKING:
    from penstock.operate.migrate.proposal import World

_MOST_ROWS = 20


def refuse_existing(path: Path) -> None:
    """An OptionError where a file would be overwritten."""
    if path.exists():
        raise OptionError(f"{path} is there already: choose another name for --out, or remove it.")


def write(files: Mapping[Path, str], *, mode: Literal["w", "x"] = "w") -> None:
    """Write files, and their folders. An OptionError where that is not possible; with mode x also where one is there
    already.
    """
    for path, text in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open(mode, encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise OptionError(f"'{path}' cannot be written: {error.strerror}. Choose another --out.") from None


def show_lines(title: str, lines: Iterable[str]) -> None:
    """Lines under a title."""
    out = console()
    out.print()
    out.print(Text(title, style="bold"))
    for line in lines:
        out.print(line, markup=False, highlight=False, soft_wrap=True)


def per_day(daily: Mapping[str, int]) -> list[str]:
    """How much each stream will store."""
    from penstock.operate.migrate.storage import approximate

    return [f"{name}: about {approximate(count)}" for name, count in daily.items() if count]


def show_traffic(world: "World") -> None:
    """What was heard, those subjects first on which most came."""
    from penstock.operate.migrate.proposal import rates
    from penstock.operate.migrate.storage import approximate

    heard, out = world.heard, console()
    total = heard.all()
    out.print(
        f"heard {total.messages:,} messages on {len(heard.subjects):,} subjects in {heard.seconds:.0f} s, "
        f"{approximate(total.size)}",
        highlight=False,
    )
    if not heard.subjects:
        return
    shown = Table("subject", "a second", "bytes each", "largest", "requests", "with headers", "with an id")
    ranked = rates(heard)
    for subject, figures, rate in ranked[:_MOST_ROWS]:
        cells = (figures.size // figures.messages, figures.largest, figures.requests, figures.with_headers,
                 figures.with_id)  # fmt: skip
        shown.add_row(Text(harmless(subject)), f"{rate:,.1f}", *(f"{cell:,}" if cell else "" for cell in cells))
    if len(ranked) > _MOST_ROWS:
        shown.add_row(f"and {len(ranked) - _MOST_ROWS:,} more", *[""] * 6)
    out.print(shown)


def show_subscriptions(world: "World") -> None:
    """Who subscribes to what."""
    if not world.seen.subscriptions:
        return
    shown = Table("subscription", "queue group", "who", "connections")
    counts: dict[tuple[str, str, str], int] = {}
    for each in world.seen.subscriptions:
        row = (each.subject, each.group, each.name or "(no name)")
        counts[row] = counts.get(row, 0) + 1
    for row, count in sorted(counts.items())[:_MOST_ROWS]:
        shown.add_row(*(Text(harmless(cell)) for cell in row), f"{count:,}")
    if len(counts) > _MOST_ROWS:
        shown.add_row(f"and {len(counts) - _MOST_ROWS:,} more", "", "", "")
    console().print(shown)


@contextmanager
def telling() -> Iterator[Callable[[str], None]]:
    """Show what is being done: in one line of a terminal; elsewhere not at all, as nobody waits there."""
    out = Console(stderr=True)
    if not out.is_terminal:
        yield lambda line: None
        return
    with out.status("connecting") as status:
        yield lambda line: status.update(Text(harmless(line)))
