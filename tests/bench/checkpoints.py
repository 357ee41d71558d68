"""How long `sv.restore` takes for many arrays and many hosts.

python -m tests.bench.checkpoints
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import shardviz as sv

MANY, HOSTS = 2000, 512


def _predict_many(folder: Path) -> tuple[float, float]:
    """Seconds to read the metadata of many arrays, and to count the reads of many hosts."""
    leaf = {"value_metadata": {"value_type": "jax.Array"}}
    array = {
        "zarr_format": 2, "shape": [4096, 4096], "chunks": [512, 1024], "dtype": "<f4",
        "compressor": None, "fill_value": None, "filters": None, "order": "C",
    }  # fmt: skip
    tree = {}
    for n in range(MANY):
        (folder / f"w{n}").mkdir()
        (folder / f"w{n}" / ".zarray").write_text(json.dumps(array))
        tree[f"w{n}"] = {"key_metadata": [{"key": f"w{n}"}], **leaf}
    (folder / "_METADATA").write_text(json.dumps({"tree_metadata": tree}))
    mesh = sv.mesh(data=HOSTS, model=8, processes=HOSTS)
    started = time.perf_counter()
    found = sv.restore(folder, sv.Spec.parse("data, model"), mesh)
    total = time.perf_counter() - started
    started = time.perf_counter()
    sv.text(found)
    return total, time.perf_counter() - started


def main() -> int:
    """Prints the seconds."""
    with tempfile.TemporaryDirectory() as root:
        total, text = _predict_many(Path(root))
    print(f"  {MANY:,} arrays, {HOSTS:,} hosts: {total:.2f} s, text {text:.2f} s")
    return 0


if __name__ == "__main__":
    main()
