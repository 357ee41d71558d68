"""Runs the page's modules in the one JavaScript engine at hand, that of Playwright."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import playwright

NODE = Path(playwright.__file__).parent / "driver" / "node"


def run_script(script: str, message: Any) -> Any:
    """What a module prints as JSON, which reads the message from its standard input.

    Raises:
        AssertionError: with what it said, if it fails.
    """
    done = subprocess.run(
        [str(NODE), "--input-type=module", "-e", script],
        input=json.dumps(message), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
