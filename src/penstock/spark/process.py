"""What each of Spark's Python processes does once. Knows no server."""

import gc

from penstock.kit.process_cache import shared


def settle_in() -> None:
    """Exclude imported modules from garbage collection, once in a process.

    Spark's workers collect garbage after every task, and go through every object of every module for it. That takes
    57 ms of a core; to read a small batch takes 4.
    """
    shared("settled", _freeze)


def _freeze() -> bool:
    gc.freeze()
    return True
