"""`python -m tests.bench [--only NAME]`: every module here with a `main()`, in order.

A module's `main()` prints a table and returns how many targets were missed; that is the exit
status, for scripts.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
from types import ModuleType

import tests.bench

os.environ.setdefault("JAX_PLATFORMS", "cpu")


def benchmarks(only: str | None) -> list[ModuleType]:
    """The modules to run, by name.

    Raises:
        SystemExit: if `only` names none of them.
    """
    names = sorted(m.name for m in pkgutil.iter_modules(tests.bench.__path__))
    names = [n for n in names if n not in ("__main__", "timing")]  # no benchmarks themselves
    if only is not None and only not in names:
        sys.exit(f"There is no benchmark {only!r}. There are: {', '.join(names)}.")
    modules = [importlib.import_module(f"tests.bench.{n}") for n in names if only in (None, n)]
    return [m for m in modules if hasattr(m, "main")]


def main() -> int:
    """Runs them; how many targets were missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--only", metavar="NAME", help="one module of tests/bench")
    missed = 0
    for module in benchmarks(parser.parse_args().only):
        print(f"\n{module.__name__.rpartition('.')[2]}: {(module.__doc__ or '').splitlines()[0]}")
        missed += module.main() or 0  # a module without targets returns nothing
    print(f"\n{missed} targets missed" if missed else "\nevery target met")
    return missed


if __name__ == "__main__":
    sys.exit(main())
