"""What is done once in each of Spark's Python processes."""

import gc

from penstock.kit.process_cache import shared


def settle_in() -> None:
    """Once in a process of Spark's: take what is imported out of the garbage collector's sight.

    Spark's workers collect garbage after every task, and look at every object of every module for it: 57 ms
    of a core, where the reading of a small batch takes 4.
    """
    shared("settled", _freeze)


def _freeze() -> bool:
    gc.freeze()
    return True
