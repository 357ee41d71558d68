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
from shardviz.core.layout.array_spec import DTYPE_BITS
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
OLD_TREE = "checkpoint"  # msgpack, of versions before orbax 0.2 and of flax
UNFINISHED = ".orbax-checkpoint-tmp"
_KINDS = {"jax.Array": "array", "np.ndarray": "numpy", "scalar": "scalar"}
_STEP_NAME = re.compile(r"(?:.*_)?(\d+)")


def read_checkpoint(
    path: Any, step: int | None = None, item: str | None = None
) -> SavedCheckpoint:
    """The metadata of a checkpoint; no array is read and no backend of jax is started.

    Args:
        path: the folder of a checkpoint, of a step, or of a CheckpointManager.
        step: which of several steps; the last by default.
        item: which item of a checkpoint of several; the only one with arrays by
            default.

    Raises:
        ShardvizError: where there is no finished checkpoint of orbax that can be read.
    """
    try:
        return _read(path, step, item)
    except ShardvizError:
        raise
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ):
        raise ShardvizError(
            f"The metadata of {shown(str(path))} is nothing that orbax 0.12 writes. The checkpoint"
            " is damaged, or of a newer version: copy it again, or upgrade shardviz."
        ) from None


def _read(path: Any, step: int | None, item: str | None) -> SavedCheckpoint:
    folder = _folder(path)
    folder, number = _step_folder(folder, step)
    folder, item_name = _item_folder(folder, item)
    tensorstore = _tensorstore()
    tree = _json(folder / TREE)
    driver = "zarr3" if tree.get("use_zarr3") else "zarr"
    ocdbt = (folder / "manifest.ocdbt").exists()
    # Of each array or other value: its path, its name in the store, and its kind.
    arrays, others = [], []
    for leaf in tree["tree_metadata"].values():
        keys = [str(key["key"]) for key in leaf["key_metadata"]]
        kind = str(leaf["value_metadata"]["value_type"])
        if kind in _KINDS:
            arrays.append(("/".join(keys), ".".join(keys), _KINDS[kind]))
        else:
            others.append(("/".join(keys), kind))
    shardings = _shardings(folder)
    names = [name for _, name, _ in arrays]
    stores = _arrays(tensorstore, folder, names, driver, ocdbt)
    random_keys = _random_keys(folder)
    made = []
    for (path, name, kind), store in zip(arrays, stores, strict=True):
        sharding = _saved_sharding((shardings or {}).get(name))
        key = random_keys.get(name, "")
        made.append(SavedArray(path, *store, **sharding, random_key=key, kind=kind))
    return SavedCheckpoint(
        str(folder),
        number,
        item_name,
        driver,
        ocdbt,
        tuple(made),
        tuple(others),
        shardings is not None,
    )


def _tensorstore() -> ModuleType:
    try:
        import tensorstore
    except ImportError as error:
        raise MissingPackage(
            "sv.restore needs tensorstore, which comes with orbax and is not installed here:"
            " pip install orbax-checkpoint."
        ) from error
    return tensorstore


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
            f"Checkpoints are read from folders of this machine; got {shown(str(path))}. Mount the"
            " bucket, or copy the checkpoint without its large files d/*."
        )
    # A name that is too long, or has a zero in it, names no folder either.
    try:
        exists = folder.is_dir()
    except (OSError, ValueError):
        exists = False
    if not exists:
        raise ShardvizError(
            f"There is no folder {shown(str(folder))}. Give that of a checkpoint, of a step, or of"
            " a CheckpointManager."
        )
    if UNFINISHED in folder.name:
        raise _unfinished(folder)
    return folder.absolute()


def _unfinished(folder: Path) -> ShardvizError:
    return ShardvizError(
        f"{folder} is not finished: orbax was still writing it, or ended before it was done. Wait"
        " for wait_until_finished(), or take another step."
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
        _check_finished(folder)
        number = int(folder.name) if folder.name.isdecimal() else None
        return folder, number
    inner = _folders(folder)
    steps: dict[int, Path] = {}
    for each in inner:
        match = _STEP_NAME.fullmatch(each.name)
        if match and UNFINISHED not in each.name and _is_checkpoint(each):
            steps[int(match[1])] = each
    if not steps:
        raise _no_checkpoint(folder, inner)
    number = max(steps) if step is None else step
    if number not in steps:
        raise ShardvizError(
            f"{folder} has no step {shown(step)}; its steps are {joined(sorted(steps), limit=8)}."
        )
    _check_finished(steps[number])
    return steps[number], number


def _no_checkpoint(folder: Path, inner: list[Path]) -> ShardvizError:
    for each in inner:
        if UNFINISHED in each.name:
            return _unfinished(each)
    if (folder / OLD_TREE).is_file():
        return ShardvizError(
            f"{folder} is a checkpoint of flax or of an orbax before 0.2, which is read entirely"
            " by every process. Restore it, and save it again."
        )
    return ShardvizError(
        f"{folder} is no checkpoint of orbax: neither it nor a folder in it has a file {TREE}."
        " Give the folder that was saved to."
    )


def _check_finished(folder: Path) -> None:
    """Refuses a step whose last file was not written, which buckets have under its own
    name.
    """
    if not (folder / STEP).exists() or (folder / "commit_success.txt").exists():
        return
    times = _json(folder / STEP)
    if times.get("commit_timestamp_nsecs", 1) is None:
        raise _unfinished(folder)


def _item_folder(folder: Path, item: str | None) -> tuple[Path, str]:
    """The folder with the tree of arrays, and the name of its item."""
    if (folder / TREE).exists():
        if item not in (None, ""):
            raise ShardvizError(
                f"{folder} is one checkpoint without items; got item={shown(item)}. Leave it out."
            )
        return folder, ""
    items = {f.name: f for f in _folders(folder) if (f / TREE).exists()}
    if item is None and len(items) == 1:
        return next(iter(items.values())), next(iter(items))
    if isinstance(item, str) and item in items:
        return items[item], item
    if any(UNFINISHED in f.name for f in _folders(folder)):
        raise _unfinished(folder)
    if not items:
        raise ShardvizError(f"{folder} has no arrays: no item of it has a file {TREE}.")
    if item is None:
        raise ShardvizError(
            f"{folder} has several items with arrays: {listed(items)}. Say which by item=."
        )
    raise ShardvizError(f"{folder} has no item {shown(item)}.{suggestion(item, items)}")


def _json(file: Path) -> Any:
    try:
        return json.loads(read_text_file(file, MOST_BYTES))
    except (ValueError, RecursionError):
        raise ShardvizError(
            f"{file} is no JSON. The checkpoint is damaged, or of another version: copy it"
            " again."
        ) from None


def _shardings(folder: Path) -> dict[str, Any] | None:
    """By the name of an array, how it was split; None where the checkpoint does not
    say.
    """
    if not (folder / SHARDINGS).exists():
        return None
    # The names of arrays are in base64, since they are keys of a JSON object.
    shardings = {}
    for name, text in _json(folder / SHARDINGS).items():
        sharding = json.loads(text) if text else None
        shardings[base64.b64decode(name).decode()] = sharding
    return shardings


def _saved_sharding(found: Any) -> dict[str, Any]:
    """The fields of a SavedArray that a sharding in the checkpoint gives; none if it is
    unknown.
    """
    if not isinstance(found, dict):
        return {}
    if found.get("sharding_type") == "SingleDeviceSharding":
        return {"device": str(found.get("device_str") or "")}
    if found.get("sharding_type") != "NamedSharding":
        return {}
    names, sizes = tuple(found["axis_names"]), tuple(found["shape"])
    types = tuple(str(t).rpartition(".")[2] for t in found.get("axis_types") or ())
    where = {}
    nested = (found.get("device_mesh") or {}).get("mesh")
    if nested is not None:
        ids = np.array(_ids(nested), np.int64).reshape(sizes)
        where = {"device_ids": ids, "concrete": True}
    return {
        "spec": spec_of(found["partition_spec"]),
        "mesh": MeshSpec(names, sizes, types, **where),
        "has_types": bool(types),
    }


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


Store = tuple[tuple[int, ...], str, int, tuple[int, ...], np.ndarray | None]


def _arrays(
    ts: ModuleType, folder: Path, names: list[str], driver: str, ocdbt: bool
) -> list[Store]:
    """Shape, type, bytes of an element, chunk shape and stored bytes of every array."""
    base = f"file://{folder}/"
    # One context, so that the nodes of OCDBT's tree are read once.
    context = ts.Context({"cache_pool#ocdbt": {"total_bytes_limit": 100_000_000}})
    opened = []
    for name in names:
        kvstore: Any = {"driver": "file", "path": f"{folder}/{name}/"}
        if ocdbt:
            kvstore = {
                "driver": "ocdbt",
                "base": base,
                "path": f"{name}/",
                "cache_pool": "cache_pool#ocdbt",
            }
        spec = {"driver": driver, "kvstore": kvstore, "recheck_cached_metadata": False}
        opened.append(ts.open(spec, open=True, read=True, context=context))
    sizes = _ocdbt_sizes(ts, base, set(names)) if ocdbt else None
    made = []
    for name, future in zip(names, opened, strict=True):
        try:
            array = future.result()
        except (ValueError, OSError) as error:
            raise ShardvizError(
                f"The array {shown(name)} of {folder} cannot be opened as {driver}: its metadata"
                " is missing, damaged, or of a newer version. Copy the checkpoint again (cp -a), or"
                " upgrade tensorstore."
            ) from error
        made.append(_store(array, _named_sizes(folder, name, sizes)))
    return made


def _store(array: Any, sizes: dict[str, int] | None) -> Store:
    dtype, shape = array.dtype.name, tuple(array.shape)
    chunk = tuple(array.chunk_layout.read_chunk.shape or ())
    chunk = tuple(max(int(n), 1) for n in chunk)
    if dtype not in DTYPE_BITS or len(chunk) != len(shape):
        raise ShardvizError(
            f"An array of type {shown(dtype)} in chunks {chunk} is nothing that orbax saves; the"
            " checkpoint is damaged, or of a newer version. Upgrade shardviz."
        )
    counts = tuple(-(-n // c) for n, c in zip(shape, chunk, strict=True))
    stored = None
    if sizes is not None and np.prod(counts, dtype=float) <= MOST_CHUNKS:
        stored = np.zeros(counts, np.int64)
        for key, size in sizes.items():
            # `0.1` and `c/0/1` are the chunk in row 0 and column 1.
            at = tuple(map(int, re.findall(r"\d+", key)))[: len(counts)]
            stored[at] = size
        stored.flags.writeable = False
    return shape, dtype, array.dtype.numpy_dtype.itemsize, chunk, stored


def _named_sizes(folder: Path, name: str, sizes: Any) -> dict[str, int] | None:
    """By the key of a chunk, such as `0.1`, the bytes that it takes; None where
    unknown.
    """
    if sizes is not None:
        # Of arrays in OCDBT's tree; nothing at all is known where it could not be read.
        return sizes.get(name, {}) if sizes else None
    own, found = folder / name, {}
    for place, _, files in os.walk(own):
        for file in files:
            key = (Path(place) / file).relative_to(own).as_posix()
            if _is_chunk(key):
                found[key] = (Path(place) / file).stat().st_size
    return found


def _is_chunk(key: str) -> bool:
    return re.fullmatch(r"c|(c/)?\d+([./]\d+)*", key) is not None


def _ocdbt_sizes(
    ts: ModuleType, base: str, names: set[str]
) -> dict[str, dict[str, int]]:
    """By the name of an array and the key of a chunk, the bytes that it takes; {} if
    unknown.

    Reads OCDBT's tree and none of the values.
    """
    found: dict[str, dict[str, int]] = {}
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
                name, key = _name_and_key((before + entry["key"]).decode(), names)
                if key:
                    found.setdefault(name, {})[key] = size
    except (AttributeError, KeyError, TypeError, ValueError, IndexError):
        return {}  # a tensorstore without this, or another version of its tree
    return found


def _name_and_key(path: str, names: set[str]) -> tuple[str, str]:
    """The name of an array, and of a chunk in it; no chunk for what else is stored."""
    name = path
    while "/" in name:
        name = name.rpartition("/")[0]
        if name in names:
            key = path[len(name) + 1 :]
            return name, key if _is_chunk(key) else ""
    return path, ""
