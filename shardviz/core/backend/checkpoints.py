"""The metadata of checkpoints that orbax wrote: from a folder to a SavedCheckpoint.

Its files are read as they are (orbax.readthedocs.io, "Checkpoint format"): `_METADATA`
has the tree, `_sharding` how arrays were split, and tensorstore, which orbax stores
them with, opens every array, which reads its shape, type and chunks. No array is read.
orbax itself is not imported: its own metadata readers start jax's backend, after which
the number of simulated devices is fixed. tests/backend compares the two.
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

from shardviz.core.errors import MissingPackage, ShardvizError
from shardviz.core.format import joined, listed, shown, suggestion
from shardviz.core.layout.libraries import spec_of
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.parse import read_text_file
from shardviz.core.layout.transfer.checkpoint import (
    MOST_CHUNKS,
    SavedArray,
    SavedCheckpoint,
)

MOST_BYTES = 1 << 28  # of a file of metadata
TREE, SHARDINGS, STEP = "_METADATA", "_sharding", "_CHECKPOINT_METADATA"
UNFINISHED = ".orbax-checkpoint-tmp"
_KINDS = {"jax.Array": "array", "np.ndarray": "numpy", "scalar": "scalar"}
_STEP_NAME = re.compile(r"(?:.*_)?(\d+)")
# The key of a chunk: `0.1` and `c/0/1` are the one in row 0 and column 1.
_CHUNK = re.compile(r"c|(c/)?\d+([./]\d+)*")


def read_checkpoint(
    path: Any, step: int | None = None, item: str | None = None
) -> SavedCheckpoint:
    """The metadata of a checkpoint; no array is read and no backend of jax is started.

    Args:
        path: the folder of a checkpoint, of a step, or of a CheckpointManager.
        step: which of several steps; the last by default.
        item: which item of a checkpoint of several; the only one with arrays by
            default.
    """
    folder = _folder(path)
    try:
        folder, number = _step_folder(folder, step)
        folder, name = _item_folder(folder, item)
        return _read(folder, number, name)
    except ShardvizError:
        raise
    # Whatever is in the files of another version fails somewhere.
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
            f"The metadata of {shown(str(folder))} is nothing that orbax 0.12 writes. The"
            " checkpoint is damaged, or of a newer version: copy it again (cp -a), or"
            " upgrade tensorstore and shardviz."
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
    driver = "zarr3" if tree.get("use_zarr3") else "zarr"
    ocdbt = (folder / "manifest.ocdbt").exists()
    kinds: dict[str, tuple[str, str]] = {}  # name in the store to path and kind
    others = []
    for leaf in tree["tree_metadata"].values():
        keys = [str(key["key"]) for key in leaf["key_metadata"]]
        kind = str(leaf["value_metadata"]["value_type"])
        if kind in _KINDS:
            kinds[".".join(keys)] = "/".join(keys), _KINDS[kind]
        else:
            others.append(("/".join(keys), kind))
    shardings = _shardings(folder)
    random_keys = _random_keys(folder)
    stores = _open(ts, folder, list(kinds), driver, ocdbt)
    base = f"file://{folder}/"
    sizes = _ocdbt_sizes(ts, base, set(kinds)) if ocdbt else _file_sizes(folder, kinds)
    arrays = []
    for name, (path, kind) in kinds.items():
        shape, chunk = tuple(stores[name].shape), _chunk_shape(stores[name])
        dtype = stores[name].dtype
        arrays.append(
            SavedArray(
                path,
                shape,
                dtype.name,
                dtype.numpy_dtype.itemsize,
                chunk,
                # Nothing is known where the tree of OCDBT could not be read.
                _stored(shape, chunk, sizes.get(name, {})) if sizes else None,
                kind,
                random_key=random_keys.get(name, ""),
                **_saved_sharding((shardings or {}).get(name)),
            )
        )
    return SavedCheckpoint(
        str(folder),
        number,
        item,
        driver,
        ocdbt,
        tuple(arrays),
        tuple(others),
        shardings is not None,
    )


def _folder(path: Any) -> Path:
    """The folder, if it is one and finished."""
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
    # A path with a zero in it names no folder either.
    if "\0" in str(folder) or not folder.is_dir():
        raise ShardvizError(
            f"There is no folder {shown(str(folder))}. Give that of a checkpoint, of a"
            " step, or of a CheckpointManager."
        )
    _check_finished(folder)
    return folder.absolute()


def _check_finished(folder: Path) -> None:
    """Refuses a folder that orbax was still writing when it was copied or it ended."""
    unfinished = UNFINISHED in folder.name
    # Buckets have their own file for that, and no other name.
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
    """Whether it is a checkpoint, or a step with items that are."""
    if (folder / STEP).exists():
        return True
    return any((each / TREE).exists() for each in (folder, *_folders(folder)))


def _step_folder(folder: Path, step: int | None) -> tuple[Path, int | None]:
    """The folder of a step, and its number; a folder that is no manager's is its own."""
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
            f"{folder} is no checkpoint of orbax 0.2 or later: neither it nor a folder in"
            f" it has a file {TREE}. Give the folder that was saved to."
        )
    number = max(steps) if step is None else step
    if number not in steps:
        raise ShardvizError(
            f"{folder} has no step {shown(step)}; its steps are"
            f" {joined(sorted(steps), limit=8)}."
        )
    _check_finished(steps[number])
    return steps[number], number


def _item_folder(folder: Path, item: str | None) -> tuple[Path, str]:
    """The folder with the tree of arrays, and the name of its item."""
    if (folder / TREE).exists():
        if item:
            raise ShardvizError(
                f"{folder} is one checkpoint without items; got item={shown(item)}. Leave"
                " it out."
            )
        return folder, ""
    items = {f.name: f for f in _folders(folder) if (f / TREE).exists()}
    if item is None and len(items) == 1:
        item = next(iter(items))
    if isinstance(item, str) and item in items:
        return items[item], item
    for each in _folders(folder):
        _check_finished(each)
    if not items:
        raise ShardvizError(f"{folder} has no arrays: no item has a file {TREE}.")
    if item is None:
        raise ShardvizError(
            f"{folder} has several items with arrays: {listed(items)}. Say which by item=."
        )
    raise ShardvizError(f"{folder} has no item {shown(item)}.{suggestion(item, items)}")


def _json(file: Path) -> Any:
    return json.loads(read_text_file(file, MOST_BYTES))


def _shardings(folder: Path) -> dict[str, Any] | None:
    """By the name of an array, how it was split; None for a checkpoint without these."""
    if not (folder / SHARDINGS).exists():
        return None
    # The names of arrays are in base64, since they are keys of a JSON object.
    shardings = {}
    for name, text in _json(folder / SHARDINGS).items():
        sharding = json.loads(text) if text else None
        shardings[base64.b64decode(name).decode()] = sharding
    return shardings


def _saved_sharding(found: Any) -> dict[str, Any]:
    """The fields of a SavedArray that a sharding in the checkpoint gives, if known."""
    kind = found.get("sharding_type") if isinstance(found, dict) else None
    if kind == "SingleDeviceSharding":
        return {"device": str(found.get("device_str") or "")}
    if kind != "NamedSharding":
        return {}
    sizes, ids = tuple(found["shape"]), None
    types = tuple(str(t).rpartition(".")[2] for t in found.get("axis_types") or ())
    nested = (found.get("device_mesh") or {}).get("mesh")
    if nested is not None:
        ids = np.array(_ids(nested), np.int64).reshape(sizes)
    mesh = MeshSpec(
        tuple(found["axis_names"]), sizes, types, ids, None, ids is not None
    )
    return {"spec": spec_of(found["partition_spec"]), "mesh": mesh}


def _ids(nested: Any) -> list[int]:
    if isinstance(nested, dict):
        return [int(nested["id"])]
    return [number for inner in nested for number in _ids(inner)]


def _random_keys(folder: Path) -> dict[str, str]:
    """By the name of an array, the algorithm of the random keys in it."""
    keys = {}
    for file in sorted(folder.glob("array_metadatas/process_*")):
        for row in _json(file).get("array_metadatas", ()):
            array = row["array_metadata"]
            algorithm = (array.get("ext_metadata") or {}).get("random_key_impl")
            if algorithm:
                keys[str(array["param_name"])] = str(algorithm)
    return keys


def _open(
    ts: ModuleType, folder: Path, names: list[str], driver: str, ocdbt: bool
) -> dict[str, Any]:
    """Every array, opened by tensorstore, which reads its metadata alone."""
    # One context, so that the nodes of OCDBT's tree are read once.
    context = ts.Context({"cache_pool#ocdbt": {"total_bytes_limit": 100_000_000}})
    opened = {}
    for name in names:
        kvstore: Any = {"driver": "file", "path": f"{folder}/{name}/"}
        if ocdbt:
            kvstore = {
                "driver": "ocdbt",
                "base": f"file://{folder}/",
                "path": f"{name}/",
                "cache_pool": "cache_pool#ocdbt",
            }
        spec = {"driver": driver, "kvstore": kvstore, "recheck_cached_metadata": False}
        opened[name] = ts.open(spec, open=True, read=True, context=context)
    return {name: future.result() for name, future in opened.items()}


def _chunk_shape(array: Any) -> tuple[int, ...]:
    chunk = array.chunk_layout.read_chunk.shape or ()
    return tuple(max(int(n), 1) for n in chunk)


def _stored(
    shape: tuple[int, ...], chunk: tuple[int, ...], sizes: dict[str, int]
) -> np.ndarray | None:
    """What every chunk takes, from the bytes of each by its key."""
    counts = tuple(-(-n // c) for n, c in zip(shape, chunk, strict=True))
    if np.prod(counts, dtype=float) > MOST_CHUNKS:
        return None
    stored = np.zeros(counts, np.int64)
    for key, size in sizes.items():
        at = tuple(map(int, re.findall(r"\d+", key)))[: len(counts)]
        stored[at] = size
    stored.flags.writeable = False
    return stored


Sizes = dict[str, dict[str, int]]  # the name of an array to its chunks' keys to bytes


def _file_sizes(folder: Path, names: Any) -> Sizes:
    """The bytes of every chunk that is a file of its own."""
    found: Sizes = {}
    for name in names:
        own = found[name] = {}
        for file in (folder / name).rglob("*"):
            key = file.relative_to(folder / name).as_posix()
            if _CHUNK.fullmatch(key) and file.is_file():
                own[key] = file.stat().st_size
    return found


def _ocdbt_sizes(ts: ModuleType, base: str, names: set[str]) -> Sizes:
    """The bytes of every chunk in OCDBT's tree, of which no values are read.

    {} where it is unknown: a tensorstore without this, or another version of its tree.
    """
    found: Sizes = {}
    try:
        store = ts.KvStore.open(base).result()
        root = ts.ocdbt.dump(store).result()["versions"][-1]["root"]
        nodes = [(b"", root["location"])]
        while nodes:
            before, location = nodes.pop()
            for entry in ts.ocdbt.dump(store, location).result()["entries"]:
                if "location" in entry:
                    prefix = before + entry["subtree_common_prefix"]
                    nodes.append((prefix, entry["location"]))
                    continue
                # A small value stands in the tree itself; of another one, its place and
                # size do.
                indirect = entry.get("indirect_value")
                if indirect is None:
                    size = len(entry["inline_value"])
                else:
                    size = int(indirect.rpartition(":")[2])
                path = name = (before + entry["key"]).decode()
                while name not in names and "/" in name:
                    name = name.rpartition("/")[0]
                key = path[len(name) + 1 :]
                if _CHUNK.fullmatch(key):
                    found.setdefault(name, {})[key] = size
    except (AttributeError, KeyError, TypeError, ValueError, IndexError):
        return {}
    return found
