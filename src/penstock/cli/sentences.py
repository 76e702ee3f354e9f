"""Errors on the terminal."""

import re
from typing import Any

import typer
from rich.console import Console

from penstock.errors import PenstockError

_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


class sentences:  # noqa: N801 - used as a block, `with sentences():`
    """An error of ours is a sentence on the terminal, and so is Ctrl-C; neither is a traceback."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, at: Any) -> None:
        if isinstance(error, PenstockError):
            text = _CONTROL.sub(" ", str(error))  # it may quote a server, and a terminal would act on these
            Console(stderr=True, soft_wrap=True).print(f"penstock: {text}", style="red", highlight=False, markup=False)
            raise typer.Exit(1)
        if isinstance(error, KeyboardInterrupt):
            Console(stderr=True).print("penstock: stopped", style="red", highlight=False)
            raise typer.Exit(130)
