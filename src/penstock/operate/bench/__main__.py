"""Starts a process of the load generator: `python -m penstock.operate.bench`. processes.py does so."""

import sys
from typing import Any


class NoPandas:
    """pyarrow imports pandas where there is one, which takes longer than all that a worker needs: here is none."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        """Refuse to import pandas."""
        if name == "pandas":
            raise ModuleNotFoundError("a process of the load generator has no pandas")


if __name__ == "__main__":
    sys.meta_path.insert(0, NoPandas)

    from penstock.operate.bench.worker import main

    main()
