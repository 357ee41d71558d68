"""Runs code in a fresh Python where some packages cannot be imported."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

REPO = Path(__file__).parents[2]
_PREAMBLE = """
import sys

class Refuse:
    def __init__(self, names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None

sys.meta_path.insert(0, Refuse({refused!r}))
"""


def run_python(
    code: str, *, without: Iterable[str] = (), path: Path = REPO, **env: str
) -> subprocess.CompletedProcess[str]:
    """What `code` does in a new process, where the packages in `without` are not installed.

    Args:
        path: the folder that imports are looked for in first.
        **env: variables to set.
    """
    preamble = _PREAMBLE.replace("{refused!r}", repr(tuple(without)))
    return subprocess.run(
        [sys.executable, "-c", preamble + code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(path), "JAX_PLATFORMS": "cpu", **env},
        cwd=path,
    )


def printed(code: str, **options: object) -> str:
    """What `code` printed.

    Raises:
        AssertionError: if it failed, with its traceback.
    """
    done = run_python(code, **options)  # type: ignore[arg-type]
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def loaded_by(code: str, names: Iterable[str], path: Path = REPO) -> set[str]:
    """Which of the packages `names` are loaded after `code` ran in a new process."""
    wanted = sorted(names)
    ending = f"\nprint('loaded:', *(n for n in {wanted!r} if n in sys.modules))"
    last = printed(code + ending, path=path).splitlines()[-1]
    return set(last.removeprefix("loaded:").split())
