"""The command line: shardviz plan|compile|audit|check|compare|doctor.

Exit codes: 0 on success; 1 for problems, failed checks or differences; 2 if the input
cannot be read or the user's function raises.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import io
import json
import os
import re
import shutil
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from shardviz.advise.contracts import STAGES, Expectation
from shardviz.advise.lock import Lock, read_lock
from shardviz.advise.public import expect, lock
from shardviz.axis_rules.audit import Audit
from shardviz.axis_rules.dialects import Dialect
from shardviz.axis_rules.public import audit, capacity_of, rules
from shardviz.base.collective import Collective
from shardviz.base.errors import ContractError, ShardvizError
from shardviz.base.format import joined, shown, suggestion
from shardviz.base.public.adopt import as_mesh
from shardviz.commands.doctor import checked_names, versions
from shardviz.commands.words import help as wording
from shardviz.commands.words.doctor import doctor_text
from shardviz.compiled.public import compile, report
from shardviz.compiled.report import Report, needed_bytes
from shardviz.compiled.stages import Stages
from shardviz.draw.public.show import text
from shardviz.draw.terminal import styled
from shardviz.plans.plan import Plan
from shardviz.plans.public import plan
from shardviz.programs.program import Program
from shardviz.programs.public.keywords import required_parameters

OK, BROKEN, WRONG = 0, 1, 2
# Success -> exit code.
EXIT_CODES = {True: OK, False: BROKEN}


class InputError(ShardvizError):
    """The user's input is wrong, or their function returned an unsupported value."""


class UserError(Exception):
    """The user's own code raised; `__cause__` is its exception."""


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises each error as an InputError of one sentence."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}. {self.prog} --help says what there is.")


def parser() -> argparse.ArgumentParser:
    """Returns the command line's argument parser.

    >>> parser().parse_args(["check", "train:step", "--no", "all-gather"]).no
    ['all-gather']
    """
    top = _Parser(
        prog="shardviz",
        description=wording.DESCRIPTION,
        epilog=wording.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = f"shardviz {sys.modules['shardviz'].__version__}"
    top.add_argument("--version", action="version", version=version)
    names = "|".join(wording.COMMANDS)
    commands = top.add_subparsers(dest="command", required=True, metavar=names)
    # Settings of options that may be repeated.
    repeated: dict[str, Any] = {"action": "append", "default": []}
    flag: dict[str, Any] = {"action": "store_true"}
    table = {"--rules": {}, "--mesh": {}, "--dialect": {}, "--json": flag}
    options: dict[str, dict[str, dict[str, Any]]] = {
        "plan": {"what": {"metavar": "WHAT"}, **table},
        "compile": {"what": {"metavar": "WHAT"}, **table, "--target": {}},
        "audit": {"what": {"metavar": "WHAT"}, **table, "--target": {}},
        "check": {
            "what": {"metavar": "WHAT"},
            **table,
            "--target": {},
            "--no": {"metavar": "KIND", **repeated},
            "--at-most": {"metavar": "BYTES", **repeated},
            "--sharded": {"metavar": "SHARE"},
            "--fits": {"metavar": "TARGET", **repeated},
            "--lock": {"metavar": "FILE"},
            "--update": flag,
            "--stage": {"choices": STAGES, "default": STAGES[0]},
        },
        "compare": {
            "before": {"metavar": "BEFORE"},
            "after": {"metavar": "AFTER"},
            **table,
            "--target": {},
            "--specs": flag,
        },
        "doctor": {"--json": flag},
    }
    for command, arguments in options.items():
        subparser = commands.add_parser(command, help=wording.COMMANDS[command])
        for name, settings in arguments.items():
            subparser.add_argument(name, help=wording.OPTIONS[name], **settings)
    return top


def script() -> int:
    """Runs the command that this process was started for; returns its exit code."""
    # Characters that the terminal cannot encode, such as arrows, become question marks.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    # The process is short. Collecting garbage during it and at its end, over all objects
    # of jax, would take a tenth of its time.
    gc.set_threshold(100_000, 50, 100)
    try:
        return main(own_process=True)
    finally:
        gc.freeze()


def main(arguments: Sequence[str] | None = None, own_process: bool = False) -> int:
    """Runs one command; returns its exit code.

    Args:
        arguments: the arguments after `python -m shardviz`; by default `sys.argv[1:]`.
        own_process: whether jax's configuration may be changed, because the process
            ends with the command. Then it compiles here, without a worker.
    """
    commands = {
        "plan": _plan,
        "compile": _compile,
        "audit": _audit,
        "check": _check,
        "compare": _compare,
        "doctor": _doctor,
    }
    try:
        options = parser().parse_args(arguments)
        options.own_process = own_process
        # What the user's code prints must not mix with the JSON.
        output = sys.stderr if options.json else sys.stdout
        with contextlib.redirect_stdout(output):
            printed, is_ok = commands[options.command](options)
    except UserError as error:
        traceback.print_exception(error.__cause__)
        return WRONG
    except ShardvizError as error:
        message = " ".join(str(error).split())
        end = "" if message.endswith((".", "?")) else "."
        print(f"shardviz: {message}{end}", file=sys.stderr)
        return WRONG
    try:
        print(printed, flush=True)
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_CODES[is_ok]


# --- the commands ---------------------------------------------------------------------

#: The text or JSON that a command prints, and whether everything is as expected.
Result = tuple[str, bool]


def _plan(options: argparse.Namespace) -> Result:
    result = _subject(options.what, options)
    if isinstance(result, Program):
        result = plan(result)
    if isinstance(result, (Report, Stages)):
        result = result.plan
    if not isinstance(result, Plan):
        raise _not_of_a_program("plan", options.what, result)
    # XLA's partitioner may use other collectives; the notes say where.
    fields: dict[str, Any] = {"estimated": True}
    if result.ok:
        fields["mesh"] = dict(result.mesh.shape)
    return _of_program(result, result.without_error.collectives, fields, options)


def _compile(options: argparse.Namespace) -> Result:
    path = Path(options.what)
    if path.suffix != ".py" and path.exists():
        result = report(path, mesh=options.mesh)
    else:
        result = _subject(options.what, options)
    if isinstance(result, Program):
        # The default target is simulated CPUs on every machine, as in the other commands.
        target = _target(result, options) or f"cpu:{result.mesh.size}"
        result = compile(result, target)
    if isinstance(result, Stages):
        result = result.report
    if not isinstance(result, Report):
        raise _not_of_a_program("report", options.what, result)
    fields = {
        "target": result.target,
        "memory": needed_bytes(result.without_error.memory),
    }
    return _of_program(result, result.without_error.collectives, fields, options)


def _of_program(
    result: Plan | Report,
    collectives: Iterable[Collective] | None,
    fields: dict[str, Any],
    options: argparse.Namespace,
) -> Result:
    """Shows a plan or report; `fields` holds further fields of its JSON."""
    if not options.json:
        return _text(result), result.ok
    rows = []
    for collective in collectives or ():
        row = {
            "kind": collective.kind,
            "mesh_axes": collective.mesh_axes,
            "bytes_per_device": collective.bytes_per_device,
            "sent_bytes": collective.sent_bytes,
            # The bytes are those of one execution; the number is None if unknown.
            "executions": collective.trips,
            "op": collective.op,
            "source": collective.source,
        }
        rows.append(row)
    fields["error"] = result.error and result.error.message
    fields["notes"] = [str(note) for note in result.without_error.notes]
    return json.dumps({**fields, "collectives": rows}, indent=2), result.ok


def _text(value: object) -> str:
    """Returns a value as text, as wide as the terminal within limits."""
    width = shutil.get_terminal_size((100, 24)).columns
    return styled(text(value, max(40, min(width, 120))), sys.stdout)


def _audit(options: argparse.Namespace) -> Result:
    result = _subject(options.what, options)
    if isinstance(result, Program):
        table, dialect = result.rules or (), result.dialect
        result = audit(
            result.arrays, table, result.mesh, dialect=dialect, target=options.target
        )
    if not isinstance(result, Audit):
        raise InputError(
            f"An audit is of a state or a program; {options.what} returned a"
            f" {type(result).__name__}"
        )
    is_ok = not result.problems and result.fits is not False
    if options.json:
        return json.dumps(_audit_json(result), indent=2), is_ok
    return _text(result), is_ok


def _audit_json(result: Audit) -> dict[str, Any]:
    arrays, unused = [], []
    for row in result.rows:
        array = {
            "path": row.path,
            "shape": list(row.shape),
            "dtype": row.dtype,
            "names": row.names and [name and str(name) for name in row.names],
            "spec": row.spec and str(row.spec),
            "bytes_per_device": row.bytes_per_device,
            "replicas": row.replicas,
            "problem": row.problem,
        }
        arrays.append(array)
    for use in result.unused_rules:
        unused.append({"rule": str(use.rule), "why": str(use.never)})
    return {
        "mesh": dict(result.mesh.shape),
        "dialect": result.dialect.value,
        "bytes_per_device": result.bytes_per_device,
        "target": result.target,
        "fits": result.fits,
        "arrays": arrays,
        # The layouts of these arrays are unknown, so `bytes_per_device` leaves them out.
        "unknown": [row.path for row in result.unknown],
        "unmatched": [{"name": u.name, "nearest": u.nearest} for u in result.unmatched],
        "unused_rules": unused,
    }


def _check(options: argparse.Namespace) -> Result:
    checks = _checks(options)
    if not checks:
        raise InputError(
            "Nothing to check: give --no, --at-most, --sharded, --fits or --lock, such"
            ' as --no "all-gather over data"'
        )
    subject = _subject(options.what, options)
    target = _target(subject, options)
    expected = expect(subject, target=target, stage=options.stage)
    results = []
    for name, run_check in checks:
        try:
            message = run_check(expected)
            results.append({"check": name, "ok": True, "message": message})
        except ContractError as error:
            results.append({"check": name, "ok": False, "message": str(error)})
    is_ok = all(result["ok"] for result in results)
    if options.json:
        return json.dumps({"ok": is_ok, "checks": results}, indent=2), is_ok
    words, lines = {True: "ok    ", False: "BROKEN"}, []
    # Failed checks come first.
    for result in sorted(results, key=lambda result: result["ok"]):
        lines.append(f"{words[result['ok']]}  {result['check']}")
        for line in result["message"].splitlines():
            lines.append(f"        {line}")
    return styled("\n".join(lines), sys.stdout), is_ok


def _compare(options: argparse.Namespace) -> Result:
    before = _lock(options.before, options, not options.specs)
    # Compile AFTER only if BEFORE has collectives to compare.
    after = _lock(options.after, options, before.collectives is not None)
    if after.collectives is None:
        before = replace(before, collectives=None)
    difference = before.diff(after)
    if options.json:
        lines = [] if difference.same else list(difference.lines)
        fields = {"same": difference.same, "lines": lines}
        return json.dumps(fields, indent=2), difference.same
    return str(difference), difference.same


def _lock(what: str, options: argparse.Namespace, collectives: bool) -> Lock:
    if Path(what).is_file():
        return read_lock(what)
    subject = _subject(what, options)
    target = _target(subject, options)
    return lock(subject, collectives=collectives, target=target)


def _doctor(options: argparse.Namespace) -> Result:
    rows = checked_names()
    is_ok = not any(problem for _, problem in rows)
    if options.json:
        fields = {"ok": is_ok, "versions": versions(), "checks": dict(rows)}
        return json.dumps(fields, indent=2), is_ok
    return doctor_text(versions(), rows), is_ok


# --- the checks -----------------------------------------------------------------------

#: A check's name, and a function that runs the check and returns a message.
Check = tuple[str, Callable[[Expectation], str]]


def _checks(options: argparse.Namespace) -> list[Check]:
    """Returns the checks that the command line requests."""
    checks: list[Check] = []

    def add(name: str, method: str, *arguments: Any, **more: Any) -> None:
        def run_check(expected: Expectation) -> str:
            getattr(expected, method)(*arguments, **more)
            return ""

        checks.append((name, run_check))

    for typed in options.no:
        kind, axes = _split(typed, "over")
        if kind in ("any", "collective"):
            kind = ""
        add(f"no {typed}", "no", kind or None, over=axes or None)
    for typed in options.at_most:
        rest, axes = _split(typed, "over")
        size, per = _split(rest, "per")
        add(f"at most {typed}", "at_most", size, per or "step", over=axes or None)
    if options.sharded is not None:
        add(f"sharded: {options.sharded}", "sharded", _share(options.sharded))
    for target in options.fits:
        add(f"fits {target}", "fits", target)
    file, update = options.lock, options.update
    if file is not None:
        checks.append((f"as in {file}", lambda e: _as_locked(e, file, update)))
    elif update:
        raise InputError("--update writes the file of --lock, and none is named")
    return checks


def _split(typed: str, word: str) -> tuple[str, str]:
    """Returns the text before and after a whole word; either can be empty."""
    before, *after = re.split(rf"(?:^|\s){word}\s+", typed.strip(), maxsplit=1)
    return before.strip(), "".join(after).strip()


def _share(typed: str) -> float:
    number, percent, _ = typed.strip().partition("%")
    try:
        return float(number) / (100 if percent else 1)
    except ValueError:
        raise InputError(
            f"--sharded must be a share, such as 0.98 or 98%; got {typed!r}"
        ) from None


def _as_locked(expected: Expectation, file: str, update: bool) -> str:
    """Compares with a lock file, or writes it if `update`; returns a message."""
    if not update:
        if not Path(file).is_file():
            raise ContractError(
                f"There is no lock {file} yet. Write it with --update, and commit it."
            )
        expected.matches(file)
        return ""
    if expected.locked().update(file):
        return f"written: {file}"
    return wording.LOCK_IS_SAME.format(file)


# --- the subject ----------------------------------------------------------------


def _subject(what: str, options: argparse.Namespace) -> Any:
    """Calls the user's function and returns its program, plan, report, stages or audit.

    Any other value counts as a state: its audit is returned.
    """
    subject, dialect = _called(what), options.dialect
    replacements: dict[str, Any] = {}
    if options.rules is not None:
        replacements["rules"] = rules(_table(options.rules), dialect=dialect)
    target, count_devices = None, None
    # Other commands compile for the target; an audit needs only its device count.
    if options.command == "audit" and options.target is not None:
        target = options.target
        count_devices = capacity_of(target)[2]
    if options.mesh is not None:
        replacements["mesh"] = as_mesh(options.mesh, count_devices)
    if dialect is not None:
        replacements["dialect"] = Dialect.of(dialect)
    if isinstance(subject, Program):
        if "mesh" in replacements:
            # Pass only axis sizes, so that the program's mesh axes keep their types.
            replacements["mesh"] = replacements["mesh"].shape
        return subject.replace(**replacements)
    if isinstance(subject, Audit) and target is not None and not replacements:
        capacity, title, _ = capacity_of(target)
        return replace(subject, capacity=capacity, target=title)
    if isinstance(subject, (Plan, Report, Stages, Audit)):
        if replacements:
            raise InputError(
                f"The {type(subject).__name__} that {what} returned has its own"
                f" {' and '.join(replacements)}: leave --{' and --'.join(replacements)} out, or return"
                " the program or the state"
            )
        return subject
    if options.command in ("plan", "compile"):  # the other commands accept a state
        return subject
    if subject is None:
        raise InputError(f"{what} returned None. Let it return a program, or a state")
    table, mesh = replacements.get("rules", ()), replacements.get("mesh")
    return audit(subject, table, mesh, dialect=dialect, target=target)


def _not_of_a_program(noun: str, what: str, value: object) -> InputError:
    return InputError(
        f"A {noun} is of a program; {what} returned {shown(value)}. Let it return"
        " sv.program(fn, ...)"
    )


def _target(subject: Any, options: argparse.Namespace) -> str | None:
    """Returns the target to compile for, by default simulated CPUs in this process.

    They start only if jax has not started other devices here. Without them, programs
    are compiled in a worker, which must import jax again.
    """
    if options.target is None and options.own_process and isinstance(subject, Program):
        from shardviz.base.backend import jax_compat
        from shardviz.programs.backend.devices import MOST_SIMULATED

        count = subject.mesh.size
        if count <= MOST_SIMULATED and jax_compat.start_cpus(count):
            return "attached"
    return options.target


def _table(typed: str) -> Path | str:
    """Returns the path of a table's file if it exists, else the table as typed."""
    # is_file() can raise if the typed table is too long for a path.
    with contextlib.suppress(OSError, ValueError):
        if Path(typed).is_file():
            return Path(typed)
    return typed


def _called(what: str) -> Any:
    """Imports `module:function` or `file.py:function` and calls it.

    Returns:
        The function's result; the value itself if it is not callable.
    """
    module, colon, name = what.rpartition(":")
    file = Path(module) if module.endswith(".py") else None
    is_module = module.replace(".", "_").isidentifier() or file is not None
    if not colon or not is_module or not name:
        got, path = f"got {what!r}", Path(what)
        if not colon and not path.exists():
            got = wording.NO_FILE.format(what)
        elif path.is_file() and path.suffix != ".py":
            got += wording.FILE_OF_XLA.format(what)
        raise InputError(
            "A function is written module:function, such as train:make_step, or"
            f" train.py:make_step; {got}"
        )
    if file is not None:
        if not file.is_file():
            raise InputError(f"There is no file {module}")
        # As when Python runs the file, its folder comes first.
        sys.path.insert(0, str(file.resolve().parent))
        module = file.stem
    try:
        here = os.getcwd()
    except FileNotFoundError:
        raise InputError("the working folder has been removed") from None
    if not {"", here} & set(sys.path):  # PYTHONSAFEPATH omits the folder
        sys.path.insert(0, here)
    try:
        value: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and f"{module}.".startswith(f"{error.name}."):
            raise InputError(
                f"There is no module {error.name!r} in {here} or among the installed"
                " packages"
            ) from None
        raise UserError from error
    except Exception as error:
        raise UserError from error
    for attribute in name.split("."):
        if not hasattr(value, attribute):
            attributes = [n for n in dir(value) if not n.startswith("_")]
            raise InputError(
                f"{module} has no {name}.{suggestion(attribute, attributes)}"
            )
        value = getattr(value, attribute)
    if not callable(value) or isinstance(value, Program):
        return value
    if missing := required_parameters(value):
        raise InputError(
            f"{what} is called without arguments, and takes {joined(missing)}. Write a"
            f" function without parameters that returns sv.program({name}, ...)"
        )
    try:
        return value()
    except (Exception, SystemExit) as error:
        raise UserError from error


if __name__ == "__main__":
    sys.exit(script())
