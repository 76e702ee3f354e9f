"""What is done once in each of Spark's Python processes."""

import gc
import sys


def settle_in() -> None:
    """Once in a process of Spark's: take what is imported out of the garbage collector's sight.

    Spark's workers collect garbage after every task, and look at every object of every module for it: 57 ms
    of a core, where the reading of a small batch takes 4.
    """
    if "_penstock_settled" not in sys.__dict__:  # not a global: a module pickled by value has new ones in each task
        sys.__dict__["_penstock_settled"] = True
        gc.freeze()
