"""python -m shardviz audit|check|compare|doctor: without a notebook, for a terminal or
a CI job.

Exit codes: 0 where all is as expected, 1 where something is not, 2 for what cannot be
read.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import io
import json
import os
import re
import shutil
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from shardviz.core.layout.trees.audit import Audit
    from shardviz.core.program.contracts import Expectation
    from shardviz.core.program.lock import Lock

OK, BROKEN, WRONG = 0, 1, 2


class InputError(Exception):
    """What somebody typed, or their function, is wrong; the message is one sentence."""


class UserError(InputError):
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
        for option in ("--json", "--traceback"):
            _add(each, option, action="store_true")
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
    arguments = sys.argv[1:] if arguments is None else arguments
    from shardviz.core.errors import ShardvizError

    try:
        options = parser().parse_args(arguments)
        commands = {
            "audit": _audit,
            "check": _check,
            "compare": _compare,
            "doctor": _doctor,
        }
        return commands[options.command](options)
    except (InputError, ShardvizError) as error:
        cause = error.__cause__ if isinstance(error, UserError) else None
        if cause is not None and "--traceback" in arguments:
            traceback.print_exception(cause)
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
    _print_json(_audit_json(found)) if options.json else _print_audit(found)
    return OK


def _check(options: argparse.Namespace) -> int:
    from shardviz.api.programs import expect
    from shardviz.core.errors import ContractError

    checks = list(_checks(options))
    if not checks:
        raise InputError(
            "Nothing to check: give --no, --at-most, --sharded, --fits or --lock, such as"
            ' --no "all-gather over data"'
        )
    expected = expect(
        _subject(options.what, options), target=options.target, stage=options.stage
    )
    results = []
    for words, ask in checks:
        try:
            results.append((words, True, ask(expected) or ""))
        except ContractError as error:
            results.append((words, False, str(error)))
    if options.json:
        rows = [{"check": w, "ok": ok, "message": said} for w, ok, said in results]
        _print_json({"ok": all(ok for _, ok, _ in results), "checks": rows})
    else:
        for words, ok, said in results:
            print(f"{'ok    ' if ok else 'BROKEN'}  {words}")
            for line in said.splitlines():
                print(f"        {line}")
    return OK if all(ok for _, ok, _ in results) else BROKEN


def _compare(options: argparse.Namespace) -> int:
    before, after = _lock(options.before, options, None), None
    # Nothing is compiled for collectives that the other side does not have.
    after = _lock(options.after, options, before)
    if before.collectives is not None and after.collectives is None:
        before = _without_collectives(before)
    found = before.diff(after)
    if options.json:
        _print_json(
            {"same": found.same, "lines": list(found.lines) if not found.same else []}
        )
    else:
        print(found)
    return OK if found.same else BROKEN


def _doctor(options: argparse.Namespace) -> int:
    from shardviz.api.doctor import checked_names, versions
    from shardviz.core.wording.doctor import doctor_text

    rows = checked_names()
    print(doctor_text(versions(), rows))
    return OK if all(state == "works" for _, state, _ in rows) else BROKEN


def _lock(what: str, options: argparse.Namespace, other: Lock | None) -> Lock:
    from shardviz.api.programs import lock

    if Path(what).is_file():
        return lock(what)
    needed = not options.specs and (other is None or other.collectives is not None)
    return lock(_subject(what, options), collectives=needed, target=options.target)


def _without_collectives(lock: Lock) -> Lock:
    from dataclasses import replace

    return replace(lock, collectives=None)


# The checks.

Check = tuple[str, Callable[["Expectation"], Any]]


def _checks(options: argparse.Namespace) -> Iterable[Check]:
    """Every check that was asked for: its words, and what asks an expectation."""
    for text in options.no:
        kind, _, axes = _split(text, "over")
        named = None if kind in ("", "any", "collective") else kind
        yield f"no {text}", lambda e, k=named, a=axes or None: e.no(k, over=a) and None
    for text in options.at_most:
        rest, _, axes = _split(text, "over")
        size, _, per = _split(rest, "per")
        asked = {"per": per or "step", "over": axes or None}
        yield f"at most {text}", lambda e, s=size, a=asked: e.at_most(s, **a) and None
    if options.sharded is not None:
        share = _share(options.sharded)
        yield (
            f"sharded: {options.sharded}",
            lambda e: e.sharded(at_least=share) and None,
        )
    for target in options.fits:
        yield f"fits {target}", lambda e, t=target: e.fits(t) and None
    if options.lock is not None:
        yield (
            f"as in {options.lock}",
            lambda e: _as_locked(e, options.lock, options.update),
        )
    elif options.update:
        raise InputError("--update writes the file of --lock, and none is named")


def _split(text: str, word: str) -> tuple[str, str, str]:
    """A text at a word that stands alone, which may be its first."""
    found = re.split(rf"(?:^|\s+){word}\s+", text.strip(), maxsplit=1)
    return found[0].strip(), word, found[1].strip() if len(found) > 1 else ""


def _share(text: str) -> float:
    number = text.strip().removesuffix("%").strip()
    try:
        return float(number) / (100 if "%" in text else 1)
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
    table = (
        None
        if options.rules is None
        else rules(_table(options.rules), dialect=options.dialect)
    )
    mesh = None if options.mesh is None else make_mesh(options.mesh)
    changes = {"rules": table, "mesh": mesh, "dialect": options.dialect}
    given = {key: value for key, value in changes.items() if value is not None}
    if isinstance(found, Program):
        if options.dialect is not None:
            given["dialect"] = Dialect.of(options.dialect)
        return found.replace(**given) if given else found
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
    value: Any = _run(lambda: _imported(module), f"importing {module}")
    for part in name.split("."):
        if not hasattr(value, part):
            from shardviz.core.format import suggestion

            known = [n for n in dir(value) if not n.startswith("_")]
            raise InputError(f"{module} has no {name}.{suggestion(part, known)}")
        value = getattr(value, part)
    from shardviz.core.program.program import Program

    if not callable(value) or isinstance(value, Program):
        return value
    with contextlib.suppress(ValueError):  # of some builtins
        try:
            inspect.signature(value).bind()
        except TypeError as error:
            raise InputError(
                f"{what} is called without arguments, and cannot be: {error}. Name a function that"
                " takes none"
            ) from None
    return _run(value, f"calling {what}")


def _imported(module: str) -> Any:
    here = os.getcwd()
    if not {"", here} & set(sys.path):  # PYTHONSAFEPATH leaves it out
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            raise InputError(
                f"There is no module {error.name!r} in {Path.cwd()} or among the installed packages"
            ) from None
        raise


def _run(call: Callable[[], Any], doing: str) -> Any:
    """What the user's code gives.

    Raises:
        UserError: where it raises, with the line of it.
    """
    from shardviz.core.errors import ContractError
    from shardviz.core.xla.module import is_user_file

    try:
        return call()
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if is_user_file(f.filename)] or list(frames)
        where = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "?"
        if isinstance(error, SyntaxError) and error.filename:
            where = f"{Path(error.filename).name}:{error.lineno}"
        last = traceback.format_exception_only(error)[-1].strip()
        if isinstance(error, ContractError):
            last = f"ContractError: {error}"
        raise UserError(
            f"{last.rstrip('.')} ({where}, {doing}). --traceback shows all of it."
        ) from error


# What is printed.


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def _print_audit(found: Audit) -> None:
    from shardviz.api.show import text
    from shardviz.core.format import bytes_text, fold

    print(text(found, max(40, min(shutil.get_terminal_size((100, 24)).columns, 120))))
    alike = lambda row: (row.array.short, str(row.spec), row.bytes_per_device)  # noqa: E731
    rows = []
    for one in fold(found.rows, lambda row: row.path, alike):
        first = one.items[0]
        held = (
            "?"
            if first.bytes_per_device is None
            else bytes_text(first.bytes_per_device)
        )
        spec = "unknown" if first.spec is None else str(first.spec)
        rows.append((one.count + one.name, first.array.short, spec, held))
    titles = ("array", "type and shape", "spec", "each, per device")
    widths = [max(len(row[n]) for row in (titles, *rows)) for n in range(len(titles))]
    print()
    for row in (titles, *rows):
        print(
            "  ".join(
                cell.ljust(width) for cell, width in zip(row, widths, strict=True)
            ).rstrip()
        )


def _audit_json(found: Audit) -> dict[str, Any]:
    return {
        "mesh": dict(found.mesh.shape),
        "dialect": found.dialect.value,
        "bytes_per_device": found.bytes_per_device,
        "arrays": [
            {
                "path": row.path,
                "shape": list(row.shape),
                "dtype": row.dtype,
                "names": None
                if row.names is None
                else [n and str(n) for n in row.names],
                "spec": None if row.spec is None else str(row.spec),
                "bytes_per_device": row.bytes_per_device,
                "replicas": row.replicas,
                "problem": row.problem,
            }
            for row in found.rows
        ],
        "unmatched": [{"name": u.name, "nearest": u.nearest} for u in found.unmatched],
        "unused_rules": [
            {"rule": str(u.rule), "why": str(u.never)} for u in found.unused_rules
        ],
    }


if __name__ == "__main__":
    # What a terminal's encoding lacks, such as an arrow, is a question mark there.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    sys.exit(main())
