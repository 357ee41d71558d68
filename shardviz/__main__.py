"""python -m shardviz audit|check|compare|doctor: for a terminal or a CI job.

Exit codes: 0 where all is as expected, 1 where something is not, 2 for what cannot be
read, or where the user's own function raises.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import re
import shutil
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from shardviz.core.layout.trees.audit import Audit
    from shardviz.core.program.contracts import Expectation
    from shardviz.core.program.lock import Lock

OK, BROKEN, WRONG = 0, 1, 2
EXIT_CODES = {True: OK, False: BROKEN}  # by whether all is as expected


class InputError(Exception):
    """What somebody typed, or their function, is wrong; the message is one sentence."""


class UserError(Exception):
    """The user's own code raised; `__cause__` is what."""


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}. {self.prog} --help says what there is.")


def parser() -> argparse.ArgumentParser:
    """The parser of the command line.

    >>> parser().parse_args(["check", "train:step", "--no", "all-gather"]).no
    ['all-gather']
    """
    from shardviz.core.wording import commands as wording

    top = _Parser(
        prog="python -m shardviz",
        description=wording.DESCRIPTION,
        epilog=wording.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"shardviz {_version()}")
    commands = top.add_subparsers(
        dest="command", required=True, metavar="|".join(wording.COMMANDS)
    )
    made: dict[str, argparse.ArgumentParser] = {}
    for name, about in wording.COMMANDS.items():
        made[name] = commands.add_parser(name, help=about)
    audit, check, compare = made["audit"], made["check"], made["compare"]
    audit.add_argument("what", metavar="WHAT")
    check.add_argument("what", metavar="WHAT")
    _add(compare, "before", metavar="BEFORE")
    _add(compare, "after", metavar="AFTER")
    for each in (audit, check, compare):
        for option in ("--rules", "--mesh", "--dialect"):
            _add(each, option)
        _add(each, "--json", action="store_true")
    for each in (check, compare):
        _add(each, "--target")
    _add(compare, "--specs", action="store_true")
    # These may be given several times.
    more: dict[str, Any] = {"action": "append", "default": []}
    _add(check, "--no", metavar="KIND", **more)
    _add(check, "--at-most", metavar="BYTES", **more)
    _add(check, "--sharded", metavar="SHARE")
    _add(check, "--fits", metavar="TARGET", **more)
    _add(check, "--lock", metavar="FILE")
    _add(check, "--update", action="store_true")
    stages = ("partitioned", "compiled")
    _add(check, "--stage", choices=stages, default="partitioned")
    return top


def _add(to: argparse.ArgumentParser, name: str, **more: Any) -> None:
    from shardviz.core.wording import commands as wording

    to.add_argument(name, help=wording.OPTIONS[name], **more)


def _version() -> str:
    return sys.modules["shardviz"].__version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code.

    Args:
        arguments: as typed after `python -m shardviz`; those of the process by default.
    """
    from shardviz.core.errors import ShardvizError

    try:
        # argparse itself takes those of the process where there are none.
        options = parser().parse_args(arguments)
        commands = {
            "audit": _audit,
            "check": _check,
            "compare": _compare,
            "doctor": _doctor,
        }
        return commands[options.command](options)
    except UserError as error:
        traceback.print_exception(error.__cause__)
        return WRONG
    except (InputError, ShardvizError) as error:
        print(f"shardviz: {' '.join(str(error).split()).rstrip('.')}.", file=sys.stderr)
        return WRONG
    except BrokenPipeError:  # as of `| head`
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN


# The commands.


def _audit(options: argparse.Namespace) -> int:
    from shardviz.api.layouts import audit
    from shardviz.core.layout.trees.audit import Audit
    from shardviz.core.program.program import Program

    found = _subject(options.what, options)
    if isinstance(found, Program):
        found = audit(
            found.arrays, found.rules or (), found.mesh, dialect=found.dialect
        )
    if not isinstance(found, Audit):
        raise InputError(
            f"An audit is of a state or a program; {options.what} returned none of them, but a"
            f" {type(found).__name__}"
        )
    if options.json:
        print(json.dumps(_audit_json(found), indent=2))
    else:
        _print_audit(found)
    return OK


def _check(options: argparse.Namespace) -> int:
    from shardviz.api.programs import expect
    from shardviz.core.errors import ContractError

    checks = _checks(options)
    if not checks:
        raise InputError(
            "Nothing to check: give --no, --at-most, --sharded, --fits or --lock, such"
            ' as --no "all-gather over data"'
        )
    expected = expect(
        _subject(options.what, options), target=options.target, stage=options.stage
    )
    results = []
    for name, ask in checks:
        try:
            said = ask(expected)
            results.append({"check": name, "ok": True, "message": said or ""})
        except ContractError as error:
            results.append({"check": name, "ok": False, "message": str(error)})
    is_ok = all(result["ok"] for result in results)
    if options.json:
        print(json.dumps({"ok": is_ok, "checks": results}, indent=2))
        return EXIT_CODES[is_ok]
    words = {True: "ok    ", False: "BROKEN"}
    for result in results:
        print(f"{words[result['ok']]}  {result['check']}")
        for line in result["message"].splitlines():
            print(f"        {line}")
    return EXIT_CODES[is_ok]


def _compare(options: argparse.Namespace) -> int:
    before = _lock(options.before, options, None)
    # Nothing is compiled for collectives that the other side does not have.
    after = _lock(options.after, options, before)
    if after.collectives is None:
        before = replace(before, collectives=None)
    difference = before.diff(after)
    if options.json:
        lines: list[str] = []
        # Without a difference, the one line says so.
        if not difference.same:
            lines += difference.lines
        print(json.dumps({"same": difference.same, "lines": lines}, indent=2))
    else:
        print(difference)
    return EXIT_CODES[difference.same]


def _doctor(options: argparse.Namespace) -> int:
    from shardviz.api.doctor import checked_names, versions
    from shardviz.core.wording.doctor import doctor_text

    rows = checked_names()
    print(doctor_text(versions(), rows))
    return EXIT_CODES[not any(problem for _, problem in rows)]


def _lock(what: str, options: argparse.Namespace, other: Lock | None) -> Lock:
    from shardviz.api.programs import lock

    if Path(what).is_file():
        return lock(what)
    needed = not options.specs and (other is None or other.collectives is not None)
    return lock(_subject(what, options), collectives=needed, target=options.target)


# The checks.

Check = tuple[str, Callable[["Expectation"], str | None]]


def _checks(options: argparse.Namespace) -> list[Check]:
    """Every check that was asked for: its name, and what asks an expectation."""
    checks: list[Check] = []

    def add(name: str, ask: Callable[..., Any], *arguments: Any, **more: Any) -> None:
        def asked(expected: Expectation) -> str | None:
            answer = ask(expected, *arguments, **more)
            # The other checks return the expectation.
            if isinstance(answer, str):
                return answer
            return None

        checks.append((name, asked))

    from shardviz.core.program.contracts import Expectation

    for text in options.no:
        kind, axes = _split(text, "over")
        if kind in ("any", "collective"):
            kind = ""
        add(f"no {text}", Expectation.no, kind or None, over=axes or None)
    for text in options.at_most:
        rest, axes = _split(text, "over")
        size, per = _split(rest, "per")
        over = axes or None
        add(f"at most {text}", Expectation.at_most, size, per or "step", over=over)
    if options.sharded is not None:
        share = _share(options.sharded)
        add(f"sharded: {options.sharded}", Expectation.sharded, at_least=share)
    for target in options.fits:
        add(f"fits {target}", Expectation.fits, target)
    if options.lock is not None:
        add(f"as in {options.lock}", _as_locked, options.lock, options.update)
    elif options.update:
        raise InputError("--update writes the file of --lock, and none is named")
    return checks


def _split(text: str, word: str) -> tuple[str, str]:
    """What is before and after a word that stands alone, which may be the first."""
    before, *after = re.split(rf"(?:^|\s+){word}\s+", text.strip(), maxsplit=1)
    return before.strip(), "".join(after).strip()


def _share(text: str) -> float:
    number = text.strip().removesuffix("%").strip()
    parts = 1
    if "%" in text:
        parts = 100
    try:
        return float(number) / parts
    except ValueError:
        raise InputError(
            f"--sharded is a share such as 0.98 or 98%; got {text!r}"
        ) from None


def _as_locked(expected: Expectation, path: str, update: bool) -> str:
    """Compares with a lock, or writes it; returns what was done."""
    from shardviz.core.errors import ContractError, ShardvizError
    from shardviz.core.program.lock_files import read_lock
    from shardviz.core.wording import commands as wording

    if not update:
        if not Path(path).is_file():
            raise ContractError(
                f"There is no lock {path} yet. Write it with --update, and commit it."
            )
        expected.matches(path)
        return ""
    made = expected.locked()
    with contextlib.suppress(ShardvizError):  # a file that is no lock is written anew
        before = read_lock(path)
        if (before.collectives is None) == (made.collectives is None) and before.diff(
            made
        ).same:
            return wording.LOCK_IS_SAME.format(path)
    made.write(path)
    return f"written: {path}"


# What is looked at.


def _subject(what: str, options: argparse.Namespace) -> Any:
    """What the user's function returns: a program or its plan, report or audit; else
    the audit of the state that it is."""
    from shardviz.api.layouts import audit, rules
    from shardviz.api.programs import Program, Report
    from shardviz.core.layout.mesh import make_mesh
    from shardviz.core.layout.rules.rules import Dialect
    from shardviz.core.layout.trees.audit import Audit
    from shardviz.core.program.plan import Plan
    from shardviz.core.program.stages import Stages

    found = _called(what)
    table = mesh = None
    if options.rules is not None:
        table = rules(_table(options.rules), dialect=options.dialect)
    if options.mesh is not None:
        mesh = make_mesh(options.mesh)
    changes = {"rules": table, "mesh": mesh, "dialect": options.dialect}
    given = {key: value for key, value in changes.items() if value is not None}
    if isinstance(found, Program):
        if options.dialect is not None:
            given["dialect"] = Dialect.of(options.dialect)
        if given:
            found = found.replace(**given)
        return found
    if isinstance(found, (Plan, Report, Stages, Audit)):
        if given:
            raise InputError(
                f"The {type(found).__name__} that {what} returned has its own"
                f" {' and '.join(given)}: leave --{' and --'.join(given)} out, or return the"
                " program or the state"
            )
        return found
    if found is None:
        raise InputError(f"{what} returned None. Let it return a program, or a state")
    return audit(found, table or (), mesh, dialect=options.dialect or "linen")


def _table(text: str) -> Path | str:
    """A table's file, where there is one, else the table itself."""
    with contextlib.suppress(
        OSError, ValueError
    ):  # of a text that is too long for a path
        if Path(text).is_file():
            return Path(text)
    return text


def _called(what: str) -> Any:
    """The value of `pkg.module:function`, called where it is callable."""
    module, colon, name = what.partition(":")
    if not colon or not module.replace(".", "_").isidentifier() or not name:
        raise InputError(
            f"WHAT is written pkg.module:function, such as train:make_step; got {what!r}"
        )
    here = os.getcwd()
    if not {"", here} & set(sys.path):  # PYTHONSAFEPATH leaves it out
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
    for part in name.split("."):
        if not hasattr(value, part):
            from shardviz.core.format import suggestion

            known = [n for n in dir(value) if not n.startswith("_")]
            raise InputError(f"{module} has no {name}.{suggestion(part, known)}")
        value = getattr(value, part)
    from shardviz.core.program.program import Program

    if not callable(value) or isinstance(value, Program):
        return value
    try:
        return value()
    except (Exception, SystemExit) as error:
        raise UserError from error


# What is printed.


def _print_audit(audit: Audit) -> None:
    from shardviz.api.show import text
    from shardviz.core.format import bytes_text, fold

    print(text(audit, max(40, min(shutil.get_terminal_size((100, 24)).columns, 120))))
    # Layers whose arrays are alike are one line.
    alike = lambda row: (row.array.short, str(row.spec), row.bytes_per_device)  # noqa: E731
    rows = [("array", "type and shape", "spec", "each, per device")]
    for one in fold(audit.rows, lambda row: row.path, alike):
        first = one.items[0]
        spec, held = "unknown", "?"
        if first.spec is not None:
            spec = str(first.spec)
        if first.bytes_per_device is not None:
            held = bytes_text(first.bytes_per_device)
        rows.append((one.count + one.name, first.array.short, spec, held))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print()
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())


def _audit_json(audit: Audit) -> dict[str, Any]:
    arrays = []
    for row in audit.rows:
        names = row.names and [name and str(name) for name in row.names]
        array = {
            "path": row.path,
            "shape": list(row.shape),
            "dtype": row.dtype,
            "names": names,
            "spec": row.spec and str(row.spec),
            "bytes_per_device": row.bytes_per_device,
            "replicas": row.replicas,
            "problem": row.problem,
        }
        arrays.append(array)
    return {
        "mesh": dict(audit.mesh.shape),
        "dialect": audit.dialect.value,
        "bytes_per_device": audit.bytes_per_device,
        "arrays": arrays,
        "unmatched": [{"name": u.name, "nearest": u.nearest} for u in audit.unmatched],
        "unused_rules": [
            {"rule": str(u.rule), "why": str(u.never)} for u in audit.unused_rules
        ],
    }


if __name__ == "__main__":
    # What a terminal's encoding lacks, such as an arrow, is a question mark there.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    sys.exit(main())
