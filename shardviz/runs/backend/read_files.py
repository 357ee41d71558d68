"""report_of_file(): reads what people attach to bug reports: HLO, StableHLO, XLA's dumps.

The files are parsed in a worker, because XLA and MLIR may end the process that parses
one. Nothing in a file is run.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shardviz.base.backend.jax_compat import hlo_of_text
from shardviz.base.collective import Collective
from shardviz.base.errors import MeshError, ProgramError, ShardvizError
from shardviz.base.format import bytes_text, plural, shown
from shardviz.base.mesh import MeshSpec, make_mesh
from shardviz.compiled.buffers import read_memory
from shardviz.compiled.dumps import allocated, dumped_programs, mesh_in
from shardviz.compiled.inherited import inherited
from shardviz.compiled.module import Module
from shardviz.compiled.read_collectives import read_collectives
from shardviz.compiled.read_groups import groups_of, pairs_of
from shardviz.compiled.report import Report
from shardviz.plans.backend.plan_module import plan_data
from shardviz.plans.plan import Plan
from shardviz.programs.backend.arguments import name_of_path
from shardviz.programs.backend.failures import in_words
from shardviz.programs.backend.worker.process import WorkerError, workers
from shardviz.programs.backend.worker.settings import Settings
from shardviz.programs.notes import BuffersNotRead, FileOfStages
from shardviz.runs.backend.read_compiled import report_of_plan

# Bytes of the largest file that is read. The text of a large model has 50 MB.
MOST = 1 << 28
_HLO = re.compile(rb"^\s*(?:HloModule|ENTRY)\s", re.MULTILINE)
_HEADER = re.compile(rb"^\s*HloModule\s[^\n]*", re.MULTILINE)
_MLIR = re.compile(rb"\bfunc\.func\b|\bstablehlo\.|\bsdy\.")
_COUNT = re.compile(rb"\b(?:num_partitions|replica_count)=(\d+)")
# Marks of a module that XLA's partitioner has not changed.
_BEFORE = re.compile(rb"xla\.sdy\.|SPMDFullToShardShape|\bsharding=\{")


def report_of_file(path: str | os.PathLike[str], mesh: MeshSpec | None) -> Report:
    """Reports on a module or a dump folder; see `sv.report`.

    Raises:
        ProgramError: if the file cannot be read, or isn't a module.
        MeshError: if `mesh` has another size than the program.
    """
    text, programs = os.fspath(path), [{}]
    name = Path(text).name
    if "\n" in text:
        name, parts = "the text", {"compiled": text.encode(errors="replace")}
    elif not os.path.isdir(text):
        parts = {"compiled": _read(Path(text)).removeprefix(b"\xef\xbb\xbf")}
    elif programs := dumped_programs(Path(text)):
        parts = {stage: _read(file) for stage, file in programs[0].items()}
    else:
        raise ProgramError(
            f"The folder {shown(text)} has no module of XLA, such as"
            " module_0001.jit_step.after_optimizations.txt. XLA writes one with"
            " XLA_FLAGS=--xla_dump_to=FOLDER."
        )
    data = next(iter(parts.values()))
    is_text, headers = b"\0" not in data, _HEADER.findall(data)
    is_mlir = is_text and not _HLO.search(data) and _MLIR.search(data)
    if is_mlir or data.startswith(b"ML\xefR"):
        plan = _in_worker(plan_data, data, name)
        return report_of_plan(plan, FileOfStages(name, ("requested", "propagated")))
    if is_text and (len(headers) > 1 or not _HLO.search(data)):
        raise ProgramError(
            f"{name} has {plural(len(headers), 'module')} of HLO, and sv.report reads one of"
            " HLO or StableHLO, in text or binary form, or a folder that XLA dumped."
        )
    return _in_worker(read_hlo, parts, name, mesh, len(programs))


def _read(file: Path) -> bytes:
    try:
        # Reading a pipe would never end.
        if file.stat().st_size <= MOST and file.is_file():
            return file.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ProgramError(
            f"The file {shown(str(file))} cannot be read: {reason}. sv.report takes a path,"
            " or the text of a module of HLO or StableHLO."
        ) from None
    raise ProgramError(
        f"{shown(str(file))} is not a regular file, or has more than"
        f" {bytes_text(MOST)}. Pass the module of a smaller program, such as one layer."
    )


def _in_worker(function: Callable[..., Report | Plan], *arguments: Any) -> Any:
    try:
        return workers.call(Settings.of("cpu", 1, 1), function, *arguments)
    except WorkerError as error:
        if not error.crashed:
            raise
        raise ProgramError(
            "XLA ends the process that parses this module, so it was parsed in the worker"
            f" and has no report. {error}"
        ) from error
    except ShardvizError:
        raise
    except (ValueError, LookupError, AssertionError, RecursionError) as error:
        raise ProgramError(
            f"{arguments[1]} is not a complete module in text or binary form"
            f" ({in_words(error)}). Pass a file as XLA or jax wrote it, unpacked."
        ) from None


def read_hlo(
    parts: Mapping[str, bytes],
    name: str,
    mesh: MeshSpec | None,
    programs: int,
    folder: str,
) -> Report:
    """Reads the modules of one program, in a worker.

    Args:
        parts: stage, as in `dumps.STAGES` -> module, latest stage first, or the text of
            the buffers. A single module may have another stage.
        name: the name of the file or folder.
        mesh: the mesh, if the user named it.
        programs: number of programs in the folder.
        folder: the worker's folder for the files of a call; not used.

    Raises:
        Exception: if a module cannot be read, or if `mesh` has another size.
    """
    modules = {s: _module(data, name) for s, data in parts.items() if s != "buffers"}
    stage, module = next(iter(modules.items()))
    devices = _devices(parts[stage], module)
    named_mesh = mesh_in(modules.get("before", module), devices)
    if not devices:
        devices = named_mesh.size if named_mesh else _devices_in_groups(module)
    if mesh is not None and mesh.size != devices:
        raise MeshError(
            f"The mesh {mesh} has {plural(mesh.size, 'device')}, and the program in {name}"
            f" has {devices:,}. Pass the mesh that it was compiled for."
        )
    named_mesh = mesh or named_mesh
    on_mesh = named_mesh or make_mesh(device=devices)
    arguments = {p.op: name_of_path(p.op) for p in module.entry.parameters.values()}
    by_stage: dict[str, tuple[Collective, ...]] = {}
    for part, parsed in modules.items():
        axes, sizes = on_mesh.axis_names, on_mesh.axis_sizes
        moves = read_collectives(parsed, axes, sizes, arguments=arguments)
        is_before = not parsed.is_partitioned and _BEFORE.search(parts[part])
        if parsed.is_scheduled:
            by_stage["compiled"] = moves
        elif not is_before and (parsed.is_partitioned or moves or devices == 1):
            by_stage.setdefault("partitioned", moves)
    report = Report(
        module.name.removeprefix("jit_") or name,
        plural(devices, "device"),
        loops=module.loops,
        mesh=on_mesh,
        partitioned=by_stage.get("partitioned"),
        notes=(
            FileOfStages(
                name, tuple(sorted(by_stage)[::-1]), devices, bool(named_mesh), programs
            ),
        ),
    )
    if "compiled" not in by_stage:
        return report
    moves = inherited(by_stage.get("partitioned", ()), by_stage["compiled"])
    data = parts[stage] if module.is_dump else parts.get("buffers", b"")
    memory = allocated(data)
    if module.is_dump:
        try:
            memory = memory.replace(timeline=read_memory(data, arguments, module))
        # XLA's format may change; the rest of the report doesn't need the buffers.
        except (ValueError, LookupError) as error:
            unread = BuffersNotRead(repr(error))
            report = report.replace(notes=(*report.notes, unread))
    return report.replace(collectives=moves, memory=memory)


def _module(data: bytes, name: str) -> Module:
    """Parses a module in text or proto; a text is parsed by XLA."""
    if b"\0" in data or not _HLO.search(data):
        return Module(data)
    header = _HEADER.search(data)
    text = data[header.start() :] if header else data  # without a log before it
    try:
        return Module(hlo_of_text(text.decode(errors="replace")))
    except Exception as error:  # noqa: BLE001  XLA raises its own type
        raise ProgramError(
            f"XLA cannot parse {name}. {in_words(error)} Pass the complete text of a"
            " module written by this version of XLA or an older one."
        ) from None


def _devices(data: bytes, module: Module) -> int:
    """Returns the number of devices that a module is compiled for; 0 if unknown."""
    header = _HEADER.search(data)
    counts = _COUNT.findall(header[0]) if header else []
    counted = math.prod(map(int, counts)) if counts else 0
    return counted or module.partitions * max(1, module.replicas)


def _devices_in_groups(module: Module) -> int:
    """Returns the number of devices that the collectives of a module name, at least 1."""
    last = 0
    for instruction in module.instructions():
        if instruction.kind and not instruction.opcode.endswith("-done"):
            pairs = pairs_of(instruction)
            for group in pairs or groups_of(instruction.attributes, 1):
                last = max(last, *group)
    return last + 1
