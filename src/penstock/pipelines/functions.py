"""Python functions of transforms: found beside the file, and sent along to wherever Spark runs them. Knows modules; no
servers.
"""

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.errors import OptionError
from penstock.pipelines import model
from penstock.pipelines.pipeline import Transform


def imported(transforms: tuple[Transform, ...], file: Path) -> tuple[Transform, ...]:
    """The transforms with their Python functions, so that these need not be found where they are applied."""
    folder = file.resolve().parent
    return tuple(
        replace(each, function=function(each.config.python, folder))
        if isinstance(each.config, model.PythonFunction) and each.function is None
        else each
        for each in transforms
    )


def function(name: str, folder: Path) -> Callable[..., Any]:
    """A function by `module:function`, also of a module in `folder`."""
    module, _, attribute = name.partition(":")
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    try:
        home = importlib.import_module(module)
    except ImportError as error:
        raise OptionError(
            f"the module '{module}' cannot be imported: {error}. It is looked for in {folder} too."
        ) from None
    beside, place = folder.joinpath(*module.split(".")).with_suffix(".py"), getattr(home, "__file__", None)
    if beside.exists() and not (place and beside.samefile(place)):
        raise OptionError(
            f"the name '{module}' is taken by {place or 'a module of Python itself'}: call {beside} otherwise."
        )
    found = getattr(home, attribute, None)
    _travel_by_value(folder)
    if not callable(found):
        raise OptionError(f"the module '{module}' has no function '{attribute}'.")
    return found  # type: ignore[no-any-return] # it is the user's


def _travel_by_value(folder: Path) -> None:
    """Let functions of modules in `folder` go to Spark's Python processes as they are: those do not look there."""
    from pyspark import cloudpickle

    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and folder in Path(file).parents and "site-packages" not in Path(file).parts:
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call] # pyspark does not type it
