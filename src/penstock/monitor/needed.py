"""What observing needs besides Penstock, and what to say without it."""

import importlib.util

from penstock.errors import OptionError

PACKAGES = ("prometheus_client", "starlette", "uvicorn")


def require() -> None:
    """An OptionError that says what to install, where a package is missing."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        listed = ", ".join(missing)
        raise OptionError(f"observing needs the packages {listed}. Install them with: pip install 'penstock[observe]'")
