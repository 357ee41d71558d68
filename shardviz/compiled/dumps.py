"""The files that XLA dumps with a module: which file is which, the mesh, and the memory."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

from shardviz.base.mesh import MeshSpec, make_mesh
from shardviz.compiled.buffers import ALLOCATION, ASSIGNMENT
from shardviz.compiled.module import Module
from shardviz.compiled.report import Memory
from shardviz.compiled.wire import Message

#: Stage -> the end of the names of its files, latest stage first. CPU and GPU compilers put
#: the platform before `_after_optimizations`, TPU's put `tpu-` before the partitioner.
STAGES = {
    "compiled": r"[._]after_optimizations",
    "partitioned": r"\.after_(?:tpu-)?spmd[-_]partition(?:ing|er)\b.*",
    "before": r"\.before_optimizations",
    "buffers": r"[._]after_optimizations-buffer-assignment",
}
_MESH = re.compile(r"sdy\.mesh<\[([^\]]*)\](, *device_ids)?")
_AXIS = re.compile(r'"((?:[^"\\]|\\.)+)"=(\d+)')
_ALLOCATION = re.compile(rb"^allocation \d+: size (\d+), (.*):$", re.MULTILINE)
# The words for a use in text, and its field in a proto.
_USES = {b"parameter ": 5, b"maybe-live-out": 7, b"constant": 12, b"color ": 8}


def dumped_programs(folder: Path) -> list[dict[str, Path]]:
    """Returns each program's files in a dump, by stage; the largest program first."""
    programs: dict[str, dict[str, Path]] = {}
    for path in sorted(folder.rglob("module_*")):
        for stage, name in STAGES.items():
            match = re.fullmatch(rf"module_(\d+)\..*{name}\.(hlo\.pb|txt)", path.name)
            if match is not None:
                # In the alphabet, protos are before texts, which have less.
                programs.setdefault(match[1], {}).setdefault(stage, path)

    def size(files: dict[str, Path]) -> list[int]:
        return [files[s].stat().st_size if s in files else 0 for s in STAGES]

    largest_first = sorted(programs.values(), key=size, reverse=True)
    return [{s: files[s] for s in STAGES if s in files} for files in largest_first]


def mesh_in(module: Module, devices: int) -> MeshSpec | None:
    """Returns the mesh that a module names, or None; XLA's partitioner drops the names.

    Args:
        module: the module.
        devices: number of devices of the mesh; 0 if unknown.
    """
    meshes: list[dict[str, int]] = []
    # Until jax 0.11, the meshes are text. Ids are written for a mesh in another order than
    # the program's devices.
    for axes, has_ids in _MESH.findall(module.frontend.get("xla.sdy.meshes", "")):
        if axes and not has_ids:
            meshes.append({name: int(size) for name, size in _AXIS.findall(axes)})
    for parameter in module.entry.parameters.values():
        if axes := parameter.named_mesh:
            meshes.append(axes)
    meshes = [m for m in meshes if devices in (0, math.prod(m.values()))]
    if not meshes or meshes.count(meshes[0]) < len(meshes):
        return None
    return make_mesh(meshes[0])


def allocated(data: bytes) -> Memory:
    """Sums the allocations by use, in an `HloProto` or in the text of XLA's dump.

    >>> allocated(b"allocation 0: size 1024, parameter 0, maybe-live-out:").aliased
    1024
    """
    total = dict.fromkeys(("arguments", "outputs", "temporaries", "aliased"), 0)
    colored = any_allocation = False
    for size, (argument, output, constant, color) in _allocations(data):
        any_allocation, colored = True, colored or color
        total["arguments"] += size if argument else 0
        total["outputs"] += size if output else 0
        total["aliased"] += size if argument and output else 0
        total["temporaries"] += 0 if argument or output or constant else size
    if not any_allocation:
        return Memory()
    memory = Memory(**total)
    # TPU's compiler has a count of its own for temporaries in several kinds of memory.
    return memory.replace(temporaries=None) if colored else memory


def _allocations(data: bytes) -> Iterator[tuple[int, list[bool]]]:
    if data.startswith(b"BufferAssignment") or _ALLOCATION.match(data):
        for size, words in _ALLOCATION.findall(data):
            if b"thread-local" not in words:
                yield int(size), [use in words for use in _USES]
        return
    for message in Message(data).message(3).messages(ASSIGNMENT["allocations"]):
        if not message.number(ALLOCATION["is_thread_local"]):
            uses = [bool(message.number(field)) for field in _USES.values()]
            yield message.number(ALLOCATION["size"]), uses
