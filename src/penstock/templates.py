"""Text with columns in it, such as `orders.{region}`, filled for all rows at once. Knows Arrow; no server, no Spark."""

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import OptionError

_PIECE = re.compile(r"\{([^{}]*)\}")


def columns(template: str) -> list[str]:
    """The columns that a template names."""
    return _PIECE.findall(template)


def check(option: str, template: str, given: Sequence[str]) -> None:
    """Refuse a template that names columns which are not there."""
    if re.search(r"[{}]", _PIECE.sub("", template)):
        raise OptionError(f"option '{option}' is '{template}': braces must come in pairs, around the name of a column.")
    for name in columns(template):
        if name not in given:
            raise OptionError(
                f"option '{option}' is '{template}', but there is no column '{name}'. There are: {', '.join(given)}."
            )


def fill(template: str, batch: pa.RecordBatch) -> pa.Array:
    """The text of each row, null where one of its columns is null."""
    texts = _PIECE.split(template)
    pieces = [
        pc.cast(batch.column(text), pa.string()) if i % 2 else pa.scalar(text, pa.string())
        for i, text in enumerate(texts)
    ]
    if len(pieces) == 1:
        return pa.repeat(pieces[0], len(batch))
    return pc.binary_join_element_wise(*pieces, pa.scalar("", pa.string()))
