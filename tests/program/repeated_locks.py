"""Locks of the gallery's programs, made again in processes of their own: is any byte another?

    python -m tests.program.repeated_locks 50      two programs in each of 50 processes

Each process has another hash seed. What the first one writes, all others compare with.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import shardviz as sv
from tests.program.rule_mutations import programs_by_name

EACH = 2


def compare(number: int, folder: Path) -> list[str]:
    """Makes the locks of this process's programs, and says of each how it compares."""
    every = sorted(programs_by_name().items())
    found = []
    for at in range(number * EACH, (number + 1) * EACH):
        name, program = every[at % len(every)]
        file, lock = folder / f"{at % len(every)}.json", sv.lock(program)
        if not file.exists():
            lock.write(file)
            found.append("written")
        elif file.read_text(encoding="utf-8") != lock.text or not sv.lock(file).diff(lock).same:
            found.append(f"ALARM: {name}")
        else:
            found.append("the same")
    return found


def main(processes: int) -> int:
    """Prints how many locks were the same; the exit code is 1 where any was not."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(processes):
            done = subprocess.run(
                [sys.executable, "-m", "tests.program.repeated_locks", str(number), folder],
                env={**os.environ, "PYTHONHASHSEED": str(number * 7919 + 1)},
                capture_output=True,
                text=True,
                check=True,
            )
            counts.update(done.stdout.splitlines())
    print(dict(counts))
    return int(any(words.startswith("ALARM") for words in counts))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        print("\n".join(compare(int(sys.argv[1]), Path(sys.argv[2]))))
    else:
        sys.exit(main(int(sys.argv[1])))
