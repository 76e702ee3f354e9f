"""`penstock jetstream plan`, `apply`, `import`, `diff` and `export`: streams as files. Knows typer and rich; what is
to be done is decided in operate/declared.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.status import Status
from rich.text import Text

from penstock.cli.jetstream.asking import InJson, asking, completed, options_of
from penstock.cli.lines import closed_pipe
from penstock.cli.sentences import sentences
from penstock.errors import OptionError, PenstockError, nearest
from penstock.kit.masking import harmless

if TYPE_CHECKING:
    from penstock.operate.declared.model import Declared, Live
    from penstock.operate.declared.steps import Plan, Step

Files = Annotated[
    list[str],
    typer.Argument(metavar="FILE... [OPTION=VALUE...]", help="Declarations; options of the connection.",
                   autocompletion=completed),
]  # fmt: skip
Allowed = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-replace",
        metavar="NAME",
        help="STREAM or STREAM/CONSUMER that may be deleted or re-created, or lose messages.",
    ),
]

# A change that deletes something lacks a permission; 2 is how typer ends where the command line is wrong.
NOT_ALLOWED = 3
_STYLES = {
    "create": ("+", "green"), "update": ("~", "yellow"), "replace": ("-/+", "red"), "delete": ("-", "red"),
    "impossible": ("!", "bold red"), "nothing": (" ", "dim"),
}  # fmt: skip


def plan(words: Files, allow_replace: Allowed = None, in_json: InJson = False) -> None:
    """Show what it takes to make the server as files declare it, and what that does. Changes nothing.

    Exit code 0: it can be applied, or nothing is to be done. 1: something is impossible or wrong. 3: it would delete
    something that no --allow-replace names.
    """
    with sentences(), closed_pipe():
        files, options = split(words)
        _check_permissions(allow_replace or ())
        declared = _load(files)
        with asking(options_of(options)) as calls:
            made = _planned(calls, declared, allow_replace or ())
        if in_json:
            print(json.dumps(made.as_json(), ensure_ascii=False))
        else:
            show(made, allow_replace or ())
    _exit(made, allow_replace or ())


def apply(
    words: Files,
    allow_replace: Allowed = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before changes.")] = False,
    expect: Annotated[
        str | None, typer.Option(metavar="FINGERPRINT", help="Only if the plan is still the one with this fingerprint.")
    ] = None,
    in_json: InJson = False,
) -> None:
    """Make the server as files declare it. Shows the plan and asks first; nothing is deleted that is not named.

    Exit code 0: all is as declared. 1: something went wrong, and what was done is told. 3: a permission is missing, and
    nothing was changed.
    """
    with sentences(), closed_pipe():
        from penstock.operate.declared.apply import apply as carry_out

        files, options = split(words)
        _check_permissions(allow_replace or ())
        declared = _load(files)
        with asking(options_of(options)) as calls:
            made = _planned(calls, declared, allow_replace or ())
            if not in_json:
                show(made, allow_replace or ())
            if expect is not None and expect != made.fingerprint:
                raise OptionError(
                    f"the plan is another one now, {made.fingerprint}, and not {expect}: the files or the server have "
                    "changed. Look at the new plan, and expect that."
                )
            if made.impossible or made.refused(allow_replace or ()):
                if in_json:
                    print(json.dumps({**made.as_json(), "done": []}, ensure_ascii=False))
                _exit(made, allow_replace or ())
            if made.changes and not yes:
                _ask(len(made.changes), in_json=in_json)
            done: list[str] = []
            try:
                result = carry_out(calls, made, allow_replace or (), tell=lambda step: _tell(step, done, in_json))
            except PenstockError:
                if in_json:
                    print(json.dumps({**made.as_json(), "done": done}, ensure_ascii=False))
                raise
        if in_json:
            print(json.dumps({**made.as_json(), "done": done, "remarks": list(result.remarks)}, ensure_ascii=False))
        else:
            for remark in result.remarks:
                _print(f"note: {remark}", "yellow")
            if done:
                _print(f"{_count(len(done), 'change')} made")


def import_(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[STREAM...] [OPTION=VALUE...]", autocompletion=completed)
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="A new file instead of the terminal.")] = None,
    in_json: InJson = False,
) -> None:
    """Write what the server has as a declaration file, such that a plan with it is: nothing to do."""
    with sentences(), closed_pipe():
        from penstock.operate.declared import live, writing
        from penstock.operate.declared.names import problem

        names, options = split(words or [])
        if wrong := [why for name in names if (why := problem(name, "stream"))]:
            raise OptionError(wrong[0])
        if output is not None and output.exists():
            raise OptionError(f"{output} is there already: choose another name, or remove it.")
        with asking(options_of(options)) as calls, _progress() as progress:
            found = live.look(calls, names or None, progress)
        for name in names:
            if name not in found.streams:
                raise OptionError(f"stream '{name}' does not exist. {nearest(name, found.streams)}")
        for note in found.unseen:
            _complain(note)
        text = writing.of_live(found, names or None)
        if in_json:
            text = json.dumps({"toml": text}, ensure_ascii=False) + "\n"
        if output is None:
            sys.stdout.write(text)
            sys.stdout.flush()
        else:
            _written(output, text)


def diff(words: Files, in_json: InJson = False) -> None:
    """Show where server and files differ: what a plan would change, and what no file names.

    Exit code 0: they are the same. 1: they differ. 2: that cannot be told.
    """
    try:
        with sentences(), closed_pipe():
            from penstock.operate.declared import live
            from penstock.operate.declared.plan import plan as planned
            from penstock.operate.declared.steps import Action

            files, options = split(words)
            declared = _load(files)
            with asking(options_of(options)) as calls, _progress() as progress:
                found = live.look(calls, progress=progress)
            made = planned(declared, found)
            steps = [step for step in made.steps if step.action is not Action.NOTHING]
            if in_json:
                print(json.dumps(made.as_json(), ensure_ascii=False))
            else:
                for step in steps:
                    _show_step(step, ())
                for name in made.others:
                    _print(f"? {name}: on the server, in no file")
                for note in made.notes:
                    _print(f"note: {note}", "yellow")
                if not steps and not made.others and not found.unknown:
                    _print("no difference")
    except typer.Exit as ended:
        raise typer.Exit(2 if ended.exit_code == 1 else ended.exit_code) from None
    if found.unknown:
        raise typer.Exit(2)
    if steps or made.others:
        raise typer.Exit(1)


def export(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Declarations.")],
    nack: Annotated[bool, typer.Option("--nack", help="Resources for NACK, in Kubernetes.")] = False,
    terraform: Annotated[bool, typer.Option("--terraform", help="Resources for Terraform.")] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="A new file instead of the terminal.")] = None,
    in_json: InJson = False,
) -> None:
    """Write declarations as resources of NACK or Terraform. What they cannot carry is told on stderr."""
    with sentences(), closed_pipe():
        from penstock.operate.declared import nack as for_nack
        from penstock.operate.declared import terraform as for_terraform

        if nack == terraform:
            raise OptionError("say what to write: --nack or --terraform.")
        if output is not None and output.exists():
            raise OptionError(f"{output} is there already: choose another name, or remove it.")
        written = (for_nack if nack else for_terraform).export(_load(files))
        for left_out in written.left_out:
            _complain(f"left out: {left_out}")
        text = written.text
        if in_json:
            told = {"resources": written.resources, "text": written.text, "leftOut": written.left_out}
            text = json.dumps(told, ensure_ascii=False) + "\n"
        if output is None:
            sys.stdout.write(text)
            sys.stdout.flush()
        else:
            _written(output, text)


def split(words: Sequence[str]) -> tuple[list[Any], list[str]]:
    """Files or names, and options of the connection: these have a '=' and are no files."""
    options = [word for word in words if "=" in word and not Path(word).exists()]
    return [word for word in words if word not in options], options


def _load(files: Sequence[str | Path]) -> "Declared":
    from penstock.operate.declared.files import load

    if not files:
        raise OptionError("no file is named: penstock jetstream plan streams.toml")
    return load([Path(file) for file in files])


def _check_permissions(allowed: Sequence[str]) -> None:
    from penstock.operate.declared.names import permission_problem

    if wrong := [words for name in allowed if (words := permission_problem(name))]:
        raise OptionError(f"--allow-replace takes STREAM or STREAM/CONSUMER: {wrong[0]}")


def _planned(calls: Any, declared: "Declared", allowed: Sequence[str]) -> "Plan":
    """The plan. Permissions for names that it does not have are told on stderr."""
    from penstock.operate.declared import live
    from penstock.operate.declared.names import not_planned
    from penstock.operate.declared.plan import plan as planned

    with _progress() as progress:
        found: Live = live.look(calls, declared.streams, progress)
    made = planned(declared, found)
    for sentence in not_planned(allowed, {step.name for step in made.steps}):
        _complain(sentence)
    return made


def _exit(made: "Plan", allowed: Sequence[str]) -> None:
    if made.impossible:
        raise typer.Exit(1)
    if made.refused(allowed):
        raise typer.Exit(NOT_ALLOWED)


def show(made: "Plan", allowed: Sequence[str]) -> None:
    """The plan, for people."""
    for step in made.steps:
        if step.action.value != "nothing":
            _show_step(step, allowed)
    for note in made.notes:
        _print(f"note: {note}", "yellow")
    if not made.changes and not made.impossible:
        _print("nothing to do")
        return
    counts = [
        _count(count, word)
        for word in ("create", "update", "replace", "delete", "impossible")
        if (count := sum(step.action.value == word for step in made.steps))
    ]
    _print(f"plan {made.fingerprint}: {', '.join(counts)}")
    if refused := made.refused(allowed):
        names = " ".join(f"--allow-replace {step.name}" for step in refused)
        _print(f"not allowed yet; to allow it: {names}", "red")


def _show_step(step: "Step", allowed: Sequence[str]) -> None:
    sign, style = _STYLES[step.action.value]
    _print(f"{sign} {step.action.value} {step.title}", style)
    for change in step.changes:
        is_new = step.action.value == "create" and change.before is None
        from penstock.operate.declared.steps import text

        _print(f"    {change.field} = {text(change.after)}" if is_new else f"    {change}")
    for sentence in step.effects:
        _print(f"    * {sentence}", "yellow")
    for sentence in step.problems:
        _print(f"    ! {sentence}", "red")


def _tell(step: "Step", done: list[str], in_json: bool) -> None:
    done.append(step.name)
    if not in_json:
        past = {"create": "created", "update": "updated", "replace": "re-created", "delete": "deleted"}
        _print(f"{past[step.action.value]} {step.title}", "green")


def _ask(count: int, *, in_json: bool) -> None:
    """Ask whether to go on; without a terminal nobody answers, and a program that reads JSON does not either."""
    if in_json:
        raise OptionError("with --json nobody is asked: --yes makes the changes. Nothing was changed.")
    if not sys.stdin.isatty():
        raise OptionError("there is no terminal to ask on: --yes makes the changes. Nothing was changed.")
    if not typer.confirm(f"make {_count(count, 'change')}?", err=True):
        raise OptionError("nothing was changed.")


def _count(count: int, word: str) -> str:
    if word == "change":
        return f"{count} change{'' if count == 1 else 's'}"
    return f"{count} {word if word == 'impossible' else f'to {word}'}"


def _written(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise OptionError(f"{path} cannot be written: {error.strerror}.") from None


def _print(text: str, style: str = "") -> None:
    """A line of the answer; text of others may hold anything."""
    indent = len(text) - len(text.lstrip())
    Console(soft_wrap=True).print(Text(" " * indent + harmless(text), style=style))


def _complain(text: str) -> None:
    Console(stderr=True, soft_wrap=True).print(Text(f"penstock: {harmless(text)}", style="yellow"))


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """What is being looked at, on stderr; nothing where there is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    with Status("looking", console=console) as status:
        yield lambda text: status.update(Text(text))
