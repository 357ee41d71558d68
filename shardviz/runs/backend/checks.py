"""Checks shard indices, layouts and specs, and compares results with unsharded ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, Sharding

from shardviz.axis_rules.libraries import spec_of
from shardviz.base.errors import LayoutError
from shardviz.base.layout import Layout, lay_out, layout_from_indices
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.compiled.checks import (
    Check,
    EffectsNotRepeated,
    FewerShards,
    Finding,
    MeshOfOneDevice,
    NotOnOneDevice,
    NotRepeatable,
    PartialResults,
    ShardElsewhere,
    ShardOutsideMesh,
    ShardsInPlace,
    SpecCompared,
    TooBigForOneDevice,
    UndecidedInShardMap,
    UnevenBlocks,
    ValuesOnSeveralProcesses,
)
from shardviz.compiled.report import Memory
from shardviz.programs.backend.devices import Device, mesh_of, own_devices, processes_of
from shardviz.programs.backend.failures import said_by
from shardviz.programs.backend.retraced import unsharded
from shardviz.programs.backend.trace import Output, Traced
from shardviz.programs.program import Program
from shardviz.runs.backend.compile import Executable, Lowered, compile_lowered
from shardviz.runs.backend.device_memory import capacity_of, fit_now, run_bytes
from shardviz.runs.backend.inputs import Inputs, copies_allowed, partial_axes
from shardviz.runs.backend.rounding import (
    MOST_DRAWS,
    Comparison,
    is_repeated,
    moved_result,
    step_of,
)

UNSHARDED = "unsharded function"


def shards_check(
    name: str, layout: Layout, array: jax.Array, ids: Mapping[Device, int]
) -> Check:
    """Compares the shard indices of a layout with the shards that the devices hold.

    Args:
        name: the name of the array.
        layout: the predicted layout.
        array: the live array.
        ids: the id of each jax device in the layout.
    """
    # jax returns no shards of an unreduced array.
    if axes := partial_axes(array):
        return Check("indices", None, PartialResults(tuple(axes)), array=name)
    shards = array.addressable_shards
    # With several processes, each sees only the shards on its own devices.
    process = jax.process_index() if len(processes_of(list(ids))) > 1 else None
    finding = _compare_shards(layout, array, shards, ids)
    ok = isinstance(finding, ShardsInPlace)
    # A program that reads none of its arguments runs on fewer devices.
    if isinstance(finding, FewerShards):
        ok = finding.as_compiled
    return Check("indices", ok, finding, len(shards), process, name)


def _compare_shards(
    layout: Layout,
    array: jax.Array,
    shards: Sequence[jax.Shard],
    ids: Mapping[Device, int],
) -> Finding:
    """Finds the first difference between an array's shards and its layout, if any."""
    for shard in shards:
        assert shard.data is not None  # the shard is addressable
        device = ids.get(shard.device)
        if device is None:
            return ShardOutsideMesh(str(shard.device))
        predicted = tuple((s.start, s.stop) for s in layout.box(device))
        # For PRNG keys, jax appends the index of the key data; zip drops it.
        bounds = tuple(
            s.indices(n)[:2] for s, n in zip(shard.index, array.shape, strict=False)
        )
        if bounds != predicted or shard.data.shape != layout.shard_shape:
            return ShardElsewhere(
                device,
                bounds=bounds,
                shape=shard.data.shape,
                predicted_bounds=predicted,
                predicted_shape=layout.shard_shape,
            )
    if len(shards) == len(own_devices(list(ids))):
        return ShardsInPlace(layout.dtype, layout.shard_shape)
    as_compiled = len(shards) == layout.mesh.size
    return FewerShards(len(shards), len(ids), as_compiled)


def output_layouts(
    outputs: Sequence[Output],
    shardings: Sequence[Sharding],
    mesh: MeshSpec,
    ids: Mapping[Device, int],
) -> tuple[dict[str, Layout], list[Check]]:
    """Returns each output's Layout by name, and a Check for outputs without one.

    Args:
        outputs: the outputs.
        shardings: the compiled sharding of each output.
        mesh: the mesh of the program.
        ids: the id of each jax device in that mesh, in mesh order.
    """
    layouts: dict[str, Layout] = {}
    without: list[Check] = []
    for output, sharding in zip(outputs, shardings, strict=True):
        try:
            layouts[output.name] = _layout(output, sharding, mesh, ids)
        except LayoutError as error:
            without.append(Check("layout", None, str(error), array=output.name))
    return layouts, without


def _layout(
    output: Output, sharding: Sharding, mesh: MeshSpec, ids: Mapping[Device, int]
) -> Layout:
    if isinstance(sharding, NamedSharding):
        output_mesh = _same_devices(sharding.mesh, mesh, list(ids))
        if output_mesh is not None:
            try:
                spec = spec_of(sharding.spec)
                return lay_out(output.shape, spec, output_mesh, output.dtype)
            except LayoutError:
                # The compiler may shard a dimension unevenly. Only shard indices can
                # describe such a layout.
                pass
    if len(sharding.device_set) > 1 and "{maximal device=" in str(sharding):
        # jax shows a full shard on every device, and only one has the values.
        raise LayoutError(
            f"Only one device has the values of {output.name}: the compiler chose {sharding}."
            " Constrain it, or set out_shardings=, to have it on all devices."
        )
    indices = sharding.devices_indices_map(output.shape)
    by_id = {}
    for device, device_id in ids.items():
        if device in indices:
            by_id[device_id] = indices[device] or ()
    full_mesh = mesh if len(by_id) == mesh.size else None
    return with_spec(layout_from_indices(output.shape, output.dtype, by_id, full_mesh))


def with_spec(layout: Layout) -> Layout:
    """Finds the spec that describes a layout with shard indices, if there is one.

    If the compiler chooses an argument's sharding, jax reports no axis names for it.

    >>> from shardviz.base.mesh import make_mesh
    >>> mesh, rows = make_mesh(x=2, y=2), {0: 0, 1: 2, 2: 1, 3: 3}
    >>> boxes = {device: (slice(row, row + 1),) for device, row in rows.items()}
    >>> with_spec(layout_from_indices((4,), "int8", boxes, mesh)).spec
    P(('y', 'x'))
    """
    mesh, dims = layout.mesh, []
    for number in layout.blocks:
        steps: dict[str, int] = {}
        for axis, name in enumerate(mesh.axis_names):
            if number is not None and mesh.axis_sizes[axis] > 1:
                along = np.moveaxis(number, axis, 0)
                steps[name] = int(along[1].flat[0] - along[0].flat[0])
        # The major axis has the largest step between block numbers.
        axes = sorted((name for name in steps if steps[name]), key=lambda n: -steps[n])
        dims.append(tuple(axes))
    try:
        described = lay_out(layout.shape, Spec(tuple(dims)), mesh, layout.dtype)
    except LayoutError:
        return layout
    for number, described_number in zip(layout.blocks, described.blocks, strict=True):
        if (number is None) != (described_number is None):
            return layout
        if number is not None and (number != described_number).any():
            return layout
    return described


def _same_devices(
    output_mesh: Mesh | AbstractMesh, mesh: MeshSpec, devices: Sequence[Device]
) -> MeshSpec | None:
    """Converts an output's mesh to a MeshSpec with the program's device ids.

    Returns None if its devices differ from the program's.

    Args:
        output_mesh: the mesh of the output's sharding.
        mesh: the mesh of the program.
        devices: the devices of `mesh`, in order.
    """
    names, sizes = tuple(output_mesh.axis_names), tuple(output_mesh.axis_sizes)
    if (names, sizes) == (mesh.axis_names, mesh.axis_sizes):
        return mesh
    # An output can have another mesh with the same devices in the same order.
    if not isinstance(output_mesh, Mesh):
        return None
    if list(output_mesh.devices.flat) != devices:
        return None
    # A program that reads none of its arguments runs on fewer devices.
    if len(devices) != mesh.size:
        return None
    return MeshSpec(
        names,
        sizes,
        tuple(kind.name for kind in output_mesh.axis_types),
        mesh.device_ids.reshape(sizes),
        mesh.process_indices.reshape(sizes),
        mesh.concrete,
    )


def spec_checks(
    outputs: Sequence[Output],
    specs: Sequence[Spec | None],
    mesh: MeshSpec,
    layouts: Mapping[str, Layout],
) -> list[Check]:
    """Compares the spec requested for each output with the compiler's layout."""
    checks = []
    for output, requested in zip(outputs, specs, strict=True):
        # No spec was requested for this output.
        if requested is None:
            continue
        compiled = layouts.get(output.name)
        if compiled is None:
            finding = UnevenBlocks(str(requested))
            checks.append(Check("out_specs", False, finding, array=output.name))
            continue
        layout = lay_out(output.shape, requested, mesh, output.dtype)
        # Different specs may describe the same layout.
        is_same_layout = (
            np.array_equal(layout.groups, compiled.groups)
            and layout.shard_shape == compiled.shard_shape
        )
        compiled_spec = None if compiled.spec is None else str(compiled.spec)
        finding = SpecCompared(str(requested), compiled_spec)
        checks.append(Check("out_specs", is_same_layout, finding, array=output.name))
    return checks


@copies_allowed()
def unsharded_checks(
    program: Program,
    lowered: Lowered,
    executable: Executable,
    devices: Sequence[Device],
    inputs: Inputs,
    lower: Callable[[Traced, Program, Mesh], Lowered],
    results: Sequence[jax.Array],
) -> tuple[Check, ...]:
    """Compares the outputs with the outputs of the unsharded function.

    Args:
        program: the program that ran.
        lowered, executable: the program after lowering and after compiling.
        devices: the devices of the run.
        inputs: the arguments of the run.
        lower: lowers the unsharded function for one device.
        results: the outputs of the run.

    Returns:
        One Check per output; a single Check with the reason if outputs can't be
        compared.
    """
    if not results:
        return ()
    reason = _why_not_comparable(program, lowered, devices)
    if reason is None and inputs.on_other_processes:
        reason = ValuesOnSeveralProcesses()
    if reason is not None:
        return (Check(UNSHARDED, None, reason),)
    single = unsharded(program)
    # Use this process's first device, because each process compares separately.
    mesh = mesh_of((own_devices(devices) or list(devices))[:1], single.mesh)

    def compile_single() -> Executable:
        return compile_lowered(lower(lowered.traced, single, mesh), single.mesh)

    try:
        if lowered.cacheable:
            # Store the reference with the executable, which other runs may share.
            reference = executable.reference(compile_single)
        else:
            reference = compile_single()
        return _compared(reference, mesh, lowered, devices, inputs, results)
    except Exception as error:  # noqa: BLE001  some functions need many devices
        return (Check(UNSHARDED, None, NotOnOneDevice(said_by(error))),)


def _why_not_comparable(
    program: Program, lowered: Lowered, devices: Sequence[Device]
) -> Finding | None:
    """Returns the reason not to run a program unsharded, or None."""
    if program.mesh.size == 1:
        return MeshOfOneDevice()
    if lowered.effects:
        return EffectsNotRepeated(lowered.effects)
    # Arguments and results must fit; temporaries are unknown before the compile.
    size = sum(a.bytes for a in program.arrays)
    for output in lowered.traced.outputs:
        size += output.dtype.itemsize * math.prod(output.shape)
    return _too_big(Memory(arguments=size), devices)


def _too_big(memory: Memory, devices: Sequence[Device]) -> Finding | None:
    capacity = capacity_of(devices[:1])
    if fit_now(memory, capacity, 1).ok is not False:
        return None
    return TooBigForOneDevice(run_bytes(memory), capacity.free or 0)


def _compared(
    reference: Executable,
    mesh: Mesh,
    lowered: Lowered,
    devices: Sequence[Device],
    inputs: Inputs,
    results: Sequence[jax.Array],
) -> tuple[Check, ...]:
    # Check again, now that the compiler has reported the temporaries.
    if reason := _too_big(reference.memory, devices):
        return (Check(UNSHARDED, None, reason),)
    arguments = inputs.place_unsharded(mesh)
    expected = jax.block_until_ready(reference.run(*arguments))
    keys = jax.dtypes.prng_key
    dtypes = [a.dtype for a in arguments if not jax.numpy.issubdtype(a.dtype, keys)]
    platform = devices[0].platform

    checks: list[Check | Comparison] = []
    for number, output in enumerate(lowered.traced.outputs):
        result = results[number]
        if axes := partial_axes(result):
            finding = PartialResults(tuple(axes))
            checks.append(Check("values", None, finding, array=output.name))
            continue
        comparison = Comparison(
            output.name,
            result,
            expected[number],
            dtypes,
            platform,
            made_up=inputs.leaves is None,
        )
        checks.append(comparison)
    if _undecided(checks):
        # A function can be random, such as one that calls Python.
        again = jax.block_until_ready(reference.run(*arguments))
        for number, comparison in _undecided(checks):
            if not is_repeated(again[number], expected[number]):
                name = comparison.name
                checks[number] = Check("values", None, NotRepeatable(), array=name)
    step = step_of(lowered.text, platform)
    for draw in range(MOST_DRAWS):
        # Keep only one draw at a time: its results can be as large as the model.
        undecided = _undecided(checks)
        if not undecided:
            break
        moved = moved_result(reference.run, arguments, step, draw)
        for number, comparison in undecided:
            comparison.add(moved[number])
    judged = []
    for check in checks:
        if isinstance(check, Comparison):
            check = check.check()
        # In `shard_map`, a function can depend on device coordinates, so it may compute
        # different values on one device.
        if lowered.manual and check.ok is False:
            assert isinstance(check.finding, Finding)
            undecided_finding = UndecidedInShardMap(check.finding)
            check = replace(check, ok=None, finding=undecided_finding)
        judged.append(check)
    return tuple(judged)


def _undecided(checks: Sequence[Check | Comparison]) -> list[tuple[int, Comparison]]:
    numbered = enumerate(checks)
    return [(i, c) for i, c in numbered if isinstance(c, Comparison) and not c.decided]
