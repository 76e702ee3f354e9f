"""What each of Spark's Python processes does once. Knows no server."""

import ctypes
import gc
import sys

from penstock.kit.process_cache import shared


def settle_in() -> None:
    """Exclude imported modules from garbage collection, and keep memory that is free, once in a process.

    Spark's workers collect garbage after every task, and go through every object of every module for it. That takes
    57 ms of a core; to read a small batch takes 4. And arrays of 10,000 numbers are just so large that glibc gives each
    one back to the system and asks for it again: a quarter of what it takes to decode Avro.
    """
    shared("settled", _settle)


_TRIM, _MMAP = -1, -3  # settings of glibc's mallopt: what is given back, and what is asked for by itself


def _settle() -> bool:
    gc.freeze()
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries may have none
        if mallopt is not None:
            mallopt(_TRIM, 64 << 20)
            mallopt(_MMAP, 4 << 20)
    return True
