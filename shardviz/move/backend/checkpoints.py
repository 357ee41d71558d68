"""Reads orbax checkpoint metadata from a folder into a SavedCheckpoint.

We read the files directly (orbax.readthedocs.io, "Checkpoint format"): `_METADATA` has
the tree, and `_sharding` has the shardings of the arrays. Each array is opened with
tensorstore, which reads only its shape, dtype and chunks. orbax itself is not imported,
because its metadata readers start jax's backend, after which the number of simulated
devices is fixed. tests/backend compares our metadata with orbax's.
"""

from __future__ import annotations

import base64
import json
import os
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from shardviz.axis_rules.libraries import spec_of
from shardviz.base.errors import MissingPackage, ShardvizError
from shardviz.base.format import joined, listed, shown
from shardviz.base.mesh import MeshSpec
from shardviz.base.parse import read_text_file
from shardviz.base.partition_spec import Spec
from shardviz.move.restore import SavedArray, SavedCheckpoint

# The limit for one metadata file.
MOST_BYTES = 1 << 28
TREE, SHARDINGS, STEP = "_METADATA", "_sharding", "_CHECKPOINT_METADATA"
UNFINISHED = ".orbax-checkpoint-tmp"
_KINDS = {"jax.Array": "array", "np.ndarray": "numpy", "scalar": "scalar"}
_STEP_NAME = re.compile(r"(?:.*_)?(\d+)")


def read_checkpoint(path: Any, step: int | None = None) -> SavedCheckpoint:
    """Reads a checkpoint's metadata, without reading arrays or starting jax's backend.

    Args:
        path: the folder of a checkpoint, of a step, or of a CheckpointManager.
        step: the step of a CheckpointManager to read; by default the last one.
    """
    folder = _folder(path)
    try:
        folder, number = _step_folder(folder, step)
        folder, name = _item_folder(folder)
        return _read(folder, number, name)
    except ShardvizError:
        raise
    # Files of another version may fail in any of these ways.
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        OSError,
        RecursionError,
        TypeError,
        ValueError,
    ):
        raise ShardvizError(
            f"The metadata of {shown(str(folder))} is not in a format that orbax 0.12"
            " writes. The checkpoint is damaged, or from a newer version: copy it"
            " again (cp -a), or upgrade tensorstore and shardviz."
        ) from None


def _read(folder: Path, number: int | None, item: str) -> SavedCheckpoint:
    try:
        import tensorstore as ts
    except ImportError as error:
        raise MissingPackage(
            "sv.restore needs tensorstore, which comes with orbax and is not installed"
            " here: pip install orbax-checkpoint."
        ) from error
    tree = _json(folder / TREE)
    # Array name in the tensorstore -> (path, kind).
    kinds: dict[str, tuple[str, str]] = {}
    others = []
    for leaf in tree["tree_metadata"].values():
        keys = [str(key["key"]) for key in leaf["key_metadata"]]
        kind = str(leaf["value_metadata"]["value_type"])
        if kind in _KINDS:
            kinds[".".join(keys)] = "/".join(keys), _KINDS[kind]
        else:
            others.append("/".join(keys))
    shardings, random_keys = _shardings(folder), _random_keys(folder)
    driver = "zarr"
    if tree.get("use_zarr3"):
        driver = "zarr3"
    stores = _open(ts, folder, list(kinds), driver)
    arrays = []
    for name, (path, kind) in kinds.items():
        store = stores[name]
        chunk = store.chunk_layout.read_chunk.shape or ()
        sharding = (shardings or {}).get(name) or {}
        spec, mesh = _saved_sharding(sharding)
        if sharding.get("sharding_type") == "SingleDeviceSharding":
            kind = "one device"
        arrays.append(
            SavedArray(
                path,
                tuple(store.shape),
                store.dtype.name,
                store.dtype.numpy_dtype.itemsize,
                tuple(max(int(n), 1) for n in chunk),
                kind,
                spec,
                mesh,
                random_keys.get(name, ""),
            )
        )
    has_shardings = shardings is not None
    return SavedCheckpoint(
        str(folder), number, item, tuple(arrays), tuple(others), has_shardings
    )


def _folder(path: Any) -> Path:
    """Returns the path of a folder, after checking that it exists and is finished."""
    try:
        folder = Path(os.fsdecode(os.fspath(path))).expanduser()
    except TypeError:
        raise ShardvizError(
            f"A checkpoint is named by the path of its folder; got {shown(path)}."
        ) from None
    if "://" in str(path):
        raise ShardvizError(
            f"Checkpoints are read from folders of this machine; got {shown(str(path))}."
            " Mount the bucket, or copy the checkpoint without its large files d/*."
        )
    # A path with a null character cannot name a folder either.
    if "\0" in str(folder) or not folder.is_dir():
        raise ShardvizError(
            f"There is no folder {shown(str(folder))}. Give the folder of a checkpoint,"
            " a step or a CheckpointManager."
        )
    _check_finished(folder)
    return folder.absolute()


def _check_finished(folder: Path) -> None:
    """Raises an error for a folder that orbax has not finished writing."""
    unfinished = UNFINISHED in folder.name
    # In buckets, orbax marks a finished folder by a file instead of renaming it.
    if (folder / STEP).exists() and not (folder / "commit_success.txt").exists():
        times = _json(folder / STEP)
        unfinished = times.get("commit_timestamp_nsecs", 1) is None
    if unfinished:
        raise ShardvizError(
            f"{folder} is not finished: orbax was still writing it, or ended before it was"
            " done. Wait for wait_until_finished(), or take another step."
        )


def _folders(folder: Path) -> list[Path]:
    return sorted(inner for inner in folder.iterdir() if inner.is_dir())


def _is_checkpoint(folder: Path) -> bool:
    """Whether a folder is a checkpoint, or a step whose items are checkpoints."""
    if (folder / STEP).exists():
        return True
    return any((each / TREE).exists() for each in (folder, *_folders(folder)))


def _step_folder(folder: Path, step: int | None) -> tuple[Path, int | None]:
    """Returns the folder of a step and the step's number.

    A folder that is a checkpoint itself is returned unchanged.
    """
    if _is_checkpoint(folder):
        if step is not None:
            raise ShardvizError(
                f"{folder} is one checkpoint and not a manager's folder of steps; got"
                f" step={shown(step)}. Leave step= out."
            )
        return folder, int(folder.name) if folder.name.isdecimal() else None
    steps: dict[int, Path] = {}
    for each in _folders(folder):
        match = _STEP_NAME.fullmatch(each.name)
        if match and _is_checkpoint(each):
            steps[int(match[1])] = each
    if not steps:
        for each in _folders(folder):
            _check_finished(each)
        raise ShardvizError(
            f"{folder} is not a checkpoint of orbax 0.2 or later: neither it nor a"
            f" folder in it has a file {TREE}. Give the folder that was saved to."
        )
    number = max(steps) if step is None else step
    if number not in steps:
        raise ShardvizError(
            f"{folder} has no step {shown(step)}; its steps are"
            f" {joined(sorted(steps), limit=8)}."
        )
    _check_finished(steps[number])
    return steps[number], number


def _item_folder(folder: Path) -> tuple[Path, str]:
    """Returns the folder with the array tree, and its item name or `""`."""
    if (folder / TREE).exists():
        return folder, ""
    items = [inner for inner in _folders(folder) if (inner / TREE).exists()]
    if len(items) == 1:
        return items[0], items[0].name
    for each in _folders(folder):
        _check_finished(each)
    if not items:
        raise ShardvizError(f"{folder} has no arrays: no item has a file {TREE}.")
    names = listed(inner.name for inner in items)
    raise ShardvizError(
        f"{folder} has several items with arrays: {names}. Give the folder of one."
    )


def _json(file: Path) -> Any:
    return json.loads(read_text_file(file, MOST_BYTES))


def _shardings(folder: Path) -> dict[str, Any] | None:
    """Returns the sharding of each array by name; None if there is no sharding file."""
    if not (folder / SHARDINGS).exists():
        return None
    # Array names are base64-encoded.
    shardings = {}
    for name, text in _json(folder / SHARDINGS).items():
        sharding = json.loads(text) if text else None
        shardings[base64.b64decode(name).decode()] = sharding
    return shardings


def _saved_sharding(found: dict[str, Any]) -> tuple[Spec | None, MeshSpec | None]:
    """Returns the spec and mesh that an array was saved with, if any."""
    if found.get("sharding_type") != "NamedSharding":
        return None, None
    sizes, ids = tuple(found["shape"]), None
    types = tuple(str(t).rpartition(".")[2] for t in found.get("axis_types") or ())
    nested = (found.get("device_mesh") or {}).get("mesh")
    if nested is not None:
        ids = np.array(_ids(nested), np.int64).reshape(sizes)
    names = tuple(found["axis_names"])
    mesh = MeshSpec(names, sizes, types, ids, None, ids is not None)
    return spec_of(found["partition_spec"]), mesh


def _ids(nested: Any) -> list[int]:
    if isinstance(nested, dict):
        return [int(nested["id"])]
    return [number for inner in nested for number in _ids(inner)]


def _random_keys(folder: Path) -> dict[str, str]:
    """Returns the random key algorithm of each array of random keys, by array name."""
    keys = {}
    for file in sorted(folder.glob("array_metadatas/process_*")):
        for row in _json(file).get("array_metadatas", ()):
            array = row["array_metadata"]
            algorithm = (array.get("ext_metadata") or {}).get("random_key_impl")
            if algorithm:
                keys[str(array["param_name"])] = str(algorithm)
    return keys


def _open(
    ts: ModuleType, folder: Path, names: list[str], driver: str
) -> dict[str, Any]:
    """Opens every array with tensorstore, which reads only its metadata."""
    # Share one context, so that the nodes of the OCDBT tree are read only once.
    context = ts.Context({"cache_pool#ocdbt": {"total_bytes_limit": 100_000_000}})
    shared = (folder / "manifest.ocdbt").exists()
    opened = {}
    for name in names:
        kvstore: Any = {"driver": "file", "path": f"{folder}/{name}/"}
        if shared:
            kvstore = {
                "driver": "ocdbt",
                "base": f"file://{folder}/",
                "path": f"{name}/",
                "cache_pool": "cache_pool#ocdbt",
            }
        spec = {"driver": driver, "kvstore": kvstore, "recheck_cached_metadata": False}
        opened[name] = ts.open(spec, open=True, read=True, context=context)
    return {name: future.result() for name, future in opened.items()}
