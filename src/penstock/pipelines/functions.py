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
    except Exception as error:
        raise OptionError(
            f"the module '{module}' fails when it is imported: {type(error).__name__}: {error}."
        ) from error
    beside, place = folder.joinpath(*module.split(".")).with_suffix(".py"), getattr(home, "__file__", None)
    if beside.exists() and not (place and beside.samefile(place)):
        raise OptionError(
            f"the name '{module}' is taken by {place or 'a module of Python itself'}: call {beside} otherwise."
        )
    callee = getattr(home, attribute, None)
    _travel_by_value(folder)
    if not callable(callee):
        raise OptionError(f"the module '{module}' has no function '{attribute}'.")
    return callee  # type: ignore[no-any-return] # it is the user's


def _travel_by_value(folder: Path) -> None:
    """Let functions of modules in `folder` go to Spark's Python processes as they are: those do not look there."""
    from pyspark import cloudpickle

    installed = [Path(place).resolve() for place in (sys.prefix, sys.base_prefix)]  # may lie below the folder
    for module in list(sys.modules.values()):
        parents = Path(file).resolve().parents if (file := getattr(module, "__file__", None)) else ()
        if folder in parents and not any(place in parents for place in installed):
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call] # pyspark does not type it
