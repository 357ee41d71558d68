"""The metadata of checkpoints that orbax wrote: from a folder to a SavedCheckpoint.

Its files are read as they are (orbax.readthedocs.io, "Checkpoint format"): `_METADATA` has the
tree, `_sharding` how arrays were split, and tensorstore, which orbax stores them with, opens every
array, which reads its shape, type and chunks. No array is read. orbax itself is not imported: its
own metadata readers start jax's backend, after which the number of simulated devices is fixed.
tests/backend compares the two.
"""

from __future__ import annotations

import base64
import binascii
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
from shardviz.core.layout.checkpoint import MOST_CHUNKS, SavedArray, SavedCheckpoint
from shardviz.core.layout.libraries import spec_of
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.parse import read_text_file

MOST_BYTES = 1 << 28  # of a file of metadata
TREE, SHARDINGS, STEP = "_METADATA", "_sharding", "_CHECKPOINT_METADATA"
OLD_TREE = "checkpoint"  # msgpack, of versions before orbax 0.2 and of flax
UNFINISHED = ".orbax-checkpoint-tmp"
_KINDS = {"jax.Array": "array", "np.ndarray": "numpy", "scalar": "scalar"}
_STEP_NAME = re.compile(r"(?:.*_)?(\d+)")


def read_checkpoint(path: Any, step: int | None = None, item: str | None = None) -> SavedCheckpoint:
    """The metadata of a checkpoint; no array is read and no backend of jax is started.

    Args:
        path: the folder of a checkpoint, of a step, or of a CheckpointManager.
        step: which of several steps; the last by default.
        item: which item of a checkpoint of several; the only one with arrays by default.

    Raises:
        ShardvizError: where there is no finished checkpoint of orbax that can be read.
    """
    try:
        return _read(path, step, item)
    except ShardvizError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        raise ShardvizError(
            f"The metadata of {shown(str(path))} is nothing that orbax 0.12 writes. The checkpoint"
            " is damaged, or of a newer version: copy it again, or upgrade shardviz."
        ) from None


def _read(path: Any, step: int | None, item: str | None) -> SavedCheckpoint:
    folder = _folder(path)
    folder, number = _step_folder(folder, step)
    folder, name = _item_folder(folder, item)
    tensorstore = _tensorstore()
    tree = _json(folder / TREE, "the tree of its arrays")
    leaves = tree.get("tree_metadata") if isinstance(tree, dict) else None
    if not isinstance(leaves, dict):
        raise ShardvizError(
            f"{folder / TREE} has no tree of arrays where orbax 0.12 has it; it may be of a newer"
            " version. Upgrade shardviz, or save with orbax 0.12."
        )
    driver = "zarr3" if tree.get("use_zarr3") else "zarr"
    ocdbt = (folder / "manifest.ocdbt").exists()
    try:
        found = {_path(leaf): _kind(leaf) for leaf in leaves.values()}
        names = {_path(leaf): ".".join(_keys(leaf)) for leaf in leaves.values()}
    except (KeyError, TypeError, AttributeError):
        raise ShardvizError(
            f"{folder / TREE} describes its arrays otherwise than orbax 0.12; it may be of a newer"
            " version. Upgrade shardviz, or save with orbax 0.12."
        ) from None
    arrays = [path for path, kind in found.items() if kind in _KINDS.values()]
    others = tuple((path, kind) for path, kind in found.items() if kind not in _KINDS.values())
    shardings = _shardings(folder)
    made = _arrays(tensorstore, folder, [names[path] for path in arrays], driver, ocdbt)
    keys = _random_keys(folder)
    return SavedCheckpoint(
        str(folder),
        number,
        name,
        driver,
        ocdbt,
        tuple(
            SavedArray(
                path,
                *store,
                **_saved_sharding((shardings or {}).get(names[path])),
                random_key=keys.get(names[path], ""),
                kind=found[path],
            )
            for path, store in zip(arrays, made, strict=True)
        ),
        others,
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
    try:
        found = folder.is_dir()
    except (OSError, ValueError):  # a name that is too long, or has a zero in it
        found = False
    if not found:
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
    return any((f / TREE).exists() for f in (folder, *_folders(folder))) or (folder / STEP).exists()


def _step_folder(folder: Path, step: int | None) -> tuple[Path, int | None]:
    """The folder of a step, and its number; a folder that is no manager's is its own."""
    if _is_checkpoint(folder):
        if step is not None:
            raise ShardvizError(
                f"{folder} is one checkpoint and not a manager's folder of steps; got"
                f" step={shown(step)}. Leave step= out."
            )
        _check_finished(folder)
        return folder, int(folder.name) if folder.name.isdecimal() else None
    inner = _folders(folder)
    steps = {
        int(found[1]): f
        for f in inner
        if UNFINISHED not in f.name and (found := _STEP_NAME.fullmatch(f.name))
        if _is_checkpoint(f)
    }
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
    if any(UNFINISHED in f.name for f in inner):
        return _unfinished(next(f for f in inner if UNFINISHED in f.name))
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
    """Refuses a step whose last file was not written, which buckets have under its own name."""
    if not (folder / STEP).exists() or (folder / "commit_success.txt").exists():
        return
    found = _json(folder / STEP, "the times of the step")
    if isinstance(found, dict) and found.get("commit_timestamp_nsecs", 1) is None:
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


def _json(file: Path, what: str) -> Any:
    try:
        text = read_text_file(file, MOST_BYTES)
    except ValueError as error:
        raise ShardvizError(
            f"{file}, which has {what}, {error}: copy the checkpoint again."
        ) from None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ShardvizError(
            f"{file}, which has {what}, is no JSON. The checkpoint is damaged, or of another"
            " version: copy it again."
        ) from None


def _keys(leaf: Any) -> list[str]:
    return [str(key["key"]) for key in leaf["key_metadata"]]


def _path(leaf: Any) -> str:
    return "/".join(_keys(leaf))


def _kind(leaf: Any) -> str:
    value = leaf["value_metadata"]
    return _KINDS.get(value["value_type"], str(value["value_type"]))


def _shardings(folder: Path) -> dict[str, Any] | None:
    """By the name of an array, how it was split; None where the checkpoint does not say."""
    if not (folder / SHARDINGS).exists():
        return None
    found = _json(folder / SHARDINGS, "how arrays were split")
    try:
        return {
            base64.b64decode(name).decode(): json.loads(text) if text else None
            for name, text in found.items()
        }
    except (ValueError, AttributeError, TypeError, binascii.Error):
        raise ShardvizError(
            f"{folder / SHARDINGS} says how arrays were split in another way than orbax 0.12; it"
            " may be of a newer version. Remove it from a copy, and give specs."
        ) from None


def _saved_sharding(found: Any) -> dict[str, Any]:
    """The fields of a SavedArray that a sharding in the checkpoint gives; none if it is unknown."""
    if not isinstance(found, dict):
        return {}
    if found.get("sharding_type") == "SingleDeviceSharding":
        return {"device": str(found.get("device_str") or "")}
    if found.get("sharding_type") != "NamedSharding":
        return {}
    try:
        names, sizes = tuple(found["axis_names"]), tuple(found["shape"])
        types = tuple(str(t).rpartition(".")[2] for t in found.get("axis_types") or ())
        nested = (found.get("device_mesh") or {}).get("mesh")
        ids = None if nested is None else np.array(_ids(nested), np.int64).reshape(sizes)
        where = {} if ids is None else {"device_ids": ids, "concrete": True}
        return {
            "spec": spec_of(found["partition_spec"]),
            "mesh": MeshSpec(names, sizes, types, **where),
            "has_types": bool(types),
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def _ids(nested: Any) -> list[int]:
    if isinstance(nested, dict):
        return [int(nested["id"])]
    return [number for inner in nested for number in _ids(inner)]


def _random_keys(folder: Path) -> dict[str, str]:
    """By the name of an array, the algorithm of the random keys in it."""
    found = {}
    for file in sorted(folder.glob("array_metadatas/process_*")):
        content = _json(file, "what orbax adds to arrays")
        rows = content.get("array_metadatas", ()) if isinstance(content, dict) else ()
        for row in rows if isinstance(rows, list) else ():
            array = row.get("array_metadata", {}) if isinstance(row, dict) else {}
            more = array.get("ext_metadata") or {}
            if isinstance(more, dict) and more.get("random_key_impl"):
                found[str(array.get("param_name"))] = str(more["random_key_impl"])
    return found


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
                "driver": "ocdbt", "base": base, "path": f"{name}/",
                "cache_pool": "cache_pool#ocdbt",
            }  # fmt: skip
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
            at = tuple(map(int, re.findall(r"\d+", key)))[: len(counts)] if counts else ()
            if len(at) == len(counts) and all(a < n for a, n in zip(at, counts, strict=True)):
                stored[at] = size
        stored.flags.writeable = False
    return shape, dtype, array.dtype.numpy_dtype.itemsize, chunk, stored


def _named_sizes(folder: Path, name: str, sizes: Any) -> dict[str, int] | None:
    """By the key of a chunk, such as `0.1`, the bytes that it takes; None where unknown."""
    if sizes is not None:
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


def _ocdbt_sizes(ts: ModuleType, base: str, names: set[str]) -> dict[str, dict[str, int]]:
    """By the name of an array and the key of a chunk, the bytes that it takes; {} if unknown.

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
                inline, indirect = entry.get("inline_value"), entry.get("indirect_value")
                size = len(inline) if indirect is None else int(indirect.rpartition(":")[2])
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
