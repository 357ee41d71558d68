"""How long `import shardviz` takes beyond `import numpy`, in fresh processes."""

from __future__ import annotations

import statistics

from tests.structure.isolation import printed

TARGET_MS = 100
REPEATS = 11
IMPORT = """
import numpy, time
start = time.perf_counter()
import shardviz
print((time.perf_counter() - start) * 1e3)
"""
FIRST_LAYOUT = """
import numpy, time
start = time.perf_counter()
import shardviz as sv
sv.text(sv.layout((512, 2048), "None, model", sv.mesh(data=4, model=2)))
print((time.perf_counter() - start) * 1e3)
"""


def median_ms(code: str) -> float:
    """The median over fresh processes of what `code` prints, in milliseconds."""
    printed(code)  # writes the bytecode, which an installation has
    return statistics.median(float(printed(code)) for _ in range(REPEATS))


def main() -> None:
    """Prints the medians and whether the target is met."""
    print("\nImport, beyond `import numpy`, median of", REPEATS, "processes")
    taken = median_ms(IMPORT)
    verdict = "ok" if taken <= TARGET_MS else "MISSED"
    print(
        f"  import shardviz                    {taken:7.1f} ms   target {TARGET_MS} ms: {verdict}"
    )
    print(f"  ... and the text of a first layout {median_ms(FIRST_LAYOUT):7.1f} ms")


if __name__ == "__main__":
    main()
