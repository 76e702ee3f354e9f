"""Errors on the terminal."""

from typing import Any

import typer
from rich.console import Console

from penstock.errors import PenstockError


class sentences:  # noqa: N801 - used as a block, `with sentences():`
    """An error of ours is a sentence on the terminal, and so is Ctrl-C; neither is a traceback."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, at: Any) -> None:
        if isinstance(error, PenstockError):
            Console(stderr=True, soft_wrap=True).print(f"penstock: {error}", style="red", highlight=False, markup=False)
            raise typer.Exit(1)
        if isinstance(error, KeyboardInterrupt):
            Console(stderr=True).print("penstock: stopped", style="red", highlight=False)
            raise typer.Exit(130)
