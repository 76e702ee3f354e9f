"""Pages of the documentation whose blocks are the files of a project: above each stands the name of its file."""

import re
from pathlib import Path

DECLARATIVE = Path(__file__).parent.parent / "docs" / "declarative-pipelines.md"


def files(page: Path) -> dict[str, str]:
    """The blocks that are files, by their names."""
    return dict(re.findall(r"^`([\w./-]+)`:\n\n```\w+\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE))
