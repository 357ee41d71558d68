"""Restoring a checkpoint: predicted memory against measured, and what predicting costs.

Each restore runs in a process of its own, with 8 simulated devices; what these hold is host memory
too, and is added to what is predicted.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import shardviz as sv

ARRAYS, SHAPE = 8, (2048, 4096)
CHUNKS = {"1 MiB chunks": 1 << 20, "chunks as shards": None}
SPECS = {"rows": ("data",), "columns": (None, "data"), "replicated": ()}
MANY, HOSTS = 2000, 512


def restored(path: str, spec: str) -> dict[str, float]:
    """Restores a checkpoint in this process: what was predicted, and the memory that it took."""
    import jax
    import numpy as np
    import orbax.checkpoint as ocp
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    wanted = PartitionSpec(*SPECS[spec])
    args = {
        f"w{n}": ocp.ArrayRestoreArgs(sharding=NamedSharding(mesh, wanted)) for n in range(ARRAYS)
    }
    plan = sv.restore(path, wanted, sv.mesh(mesh))
    jax.device_put(np.ones(8), NamedSharding(mesh, PartitionSpec())).block_until_ready()
    before, done, peak = _resident(), threading.Event(), [0]

    def watch() -> None:
        while not done.wait(0.001):
            peak[0] = max(peak[0], _resident())

    thread = threading.Thread(target=watch)
    thread.start()
    with ocp.PyTreeCheckpointer() as checkpointer:
        found = checkpointer.restore(path, args=ocp.args.PyTreeRestore(restore_args=args))
    jax.block_until_ready(found)
    done.set()
    thread.join()
    held = sum(s.data.nbytes for v in found.values() for s in v.addressable_shards)
    (process,) = plan.processes
    return {
        "predicted": process.peak_host_bytes + held,
        "measured": max(peak[0], _resident()) - before,
        "read": process.bytes_at_most,
    }


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def save(path: str, chunk_bytes: int | None) -> None:
    """Saves arrays split by rows."""
    import jax
    import numpy as np
    import orbax.checkpoint as ocp
    from jax.sharding import NamedSharding, PartitionSpec

    rows = NamedSharding(
        jax.sharding.Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data")
    )
    random = np.random.default_rng(0)
    tree = {f"w{n}": jax.device_put(random.random(SHAPE, "float32"), rows) for n in range(ARRAYS)}
    args = jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=chunk_bytes), tree)
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(path, args=ocp.args.PyTreeSave(tree, save_args=args))


def _in_child(*words: Any) -> dict[str, float]:
    flags = "--xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.checkpoints", *map(str, words)],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


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
    """Prints both tables; how many restores took more than was predicted."""
    missed = 0
    with tempfile.TemporaryDirectory() as root:
        for name, chunk_bytes in CHUNKS.items():
            path = str(Path(root) / name.replace(" ", "_"))
            _in_child("save", path, chunk_bytes or 0)
            for spec in SPECS:
                row = _in_child("restore", path, spec)
                missed += row["measured"] > row["predicted"]
                mib = {key: f"{value / 2**20:,.0f} MiB" for key, value in row.items()}
                print(f"  {name}, {spec}: {mib}")
        many = Path(root) / "many"
        many.mkdir()
        total, text = _predict_many(many)
        print(f"  {MANY:,} arrays, {HOSTS:,} hosts: {total:.2f} s, text {text:.2f} s")
    return missed


if __name__ == "__main__":
    if sys.argv[1] == "save":
        save(sys.argv[2], int(sys.argv[3]) or None)
        print("{}")
    else:
        print(json.dumps(restored(sys.argv[2], sys.argv[3])))
