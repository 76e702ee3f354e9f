"""x"""


def jobs() -> None:
    """X."""
