"""Checks of a run: results against the unsharded function, shards against the predicted layout.

Results agree up to rounding.

The unsharded function is run again on arguments that are moved by one rounding step, up or down.
Sums in another order may change its results as much: by a lot where the function amplifies
rounding, by little where it does not.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from shardviz.core.backend.bridge import adopt_spec
from shardviz.core.backend.compile import Executable, Lowered, compile_lowered
from shardviz.core.backend.devices import (
    capacity_of,
    mesh_of,
    own_devices,
    processes_of,
    refusal,
    run_bytes,
)
from shardviz.core.backend.failures import said_by
from shardviz.core.backend.inputs import Inputs, copies_allowed, partial_axes
from shardviz.core.backend.tracing import Output
from shardviz.core.errors import LayoutError
from shardviz.core.format import bytes_text, listed, plural
from shardviz.core.layout.array_spec import dtype_name
from shardviz.core.layout.layout import Layout, lay_out, layout_from_indices
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.program import Program
from shardviz.core.program.report import Check, Memory

# How far two results may be apart, as a fraction of the largest value. Sums in another order differ
# by rounding; a wrong or missing sum differs by far more than this.
_TOLERANCE = {
    "float64": 1e-9,
    "complex128": 1e-9,
    "float32": 1e-4,
    "complex64": 1e-4,
    "float16": 5e-3,
    "bfloat16": 3e-2,
}
_UNSHARDED = "unsharded function"
_HIDDEN = 0.25  # of the median of a block: more than rounding changes most functions
_ZERO = 1e-7  # the rounding that is left where everything cancels
_NARROW_TYPES = 0.3  # floats of 8 bits and fewer
# GPUs and TPUs multiply float32 in fewer bits by default (TF32, bfloat16 passes).
_COARSE = {"float32": 5e-3, "complex64": 5e-3}


def tolerance(dtypes: Iterable[Any], platform: str) -> float:
    """How far apart results may be, by the coarsest of their dtypes and those of the arguments.

    >>> tolerance(["float32"], "cpu"), tolerance(["float32", "bfloat16"], "cpu")
    (0.0001, 0.03)
    """
    worst = 0.0
    for name in map(dtype_name, dtypes):
        if name.startswith(("float", "bfloat", "complex")):
            own = _TOLERANCE.get(name, _NARROW_TYPES)
            worst = max(worst, own if platform == "cpu" else _COARSE.get(name, own))
    return worst


def values_check(
    name: str,
    array: jax.Array,
    reference: jax.Array,
    inputs: Sequence[Any],
    platform: str,
    moved: Callable[[], Sequence[jax.Array]] | None = None,
) -> Check:
    """A result on many devices against the same result on one, block by block.

    Args:
        name: the name of the output.
        array: the sharded result.
        reference: the result of the unsharded function.
        inputs: the dtypes of the arguments: results are no more exact than these.
        platform: the platform it ran on.
        moved: returns the same result for arguments moved by one rounding step; called only where
            the two differ by more than is usual.
    """
    title = f"{name}: values"
    if partial := partial_sums(array):
        return Check(title, None, partial)
    if array.shape != reference.shape or array.dtype != reference.dtype:
        there = f"{reference.dtype}{list(reference.shape)}"
        return Check(title, False, f"{array.dtype}{list(array.shape)} here, {there} on one device.")
    if jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key):
        array, reference = jax.random.key_data(array), jax.random.key_data(reference)
        moved = None  # keys have no rounding
    blocks = list(_blocks(array).values())
    difference = _Difference(np.asarray(reference))
    for index, data in blocks:
        difference.add(np.asarray(data), index)
    exact = not dtype_name(array.dtype).startswith(("float", "bfloat", "complex"))
    allowed = 0.0 if exact else tolerance([array.dtype, *inputs], platform)
    check = difference.check(title, allowed, 0.0 if moved else _ZERO)
    if moved is None or (check.ok is not False and not difference.hidden):
        return check
    return _judged(check, difference, allowed, _noise(moved(), reference, [i for i, _ in blocks]))


def _blocks(array: jax.Array) -> dict[Any, tuple[Any, Any]]:
    """One of the shards that this process has for every index: the first may be elsewhere."""
    found: dict[Any, tuple[Any, Any]] = {}
    for shard in array.addressable_shards:
        key = tuple((s.start, s.stop) for s in shard.index)
        found.setdefault(key, (shard.index, shard.data))
    return found


def _noise(moved: Sequence[jax.Array], reference: jax.Array, blocks: Sequence[Any]) -> Noise:
    """How much a result changes when the arguments move by a rounding step."""
    found = []
    for result in moved:
        difference, other = _Difference(np.asarray(reference)), np.asarray(result)
        for index in blocks:
            difference.add(other[index], index)
        found.append(difference)
    return Noise(
        max(d.worst for d in found),
        max(d.unlike for d in found),
        tuple(np.max([d.typical for d in found], axis=0)) if blocks else (),
    )


def _judged(check: Check, found: _Difference, allowed: float, noise: Noise) -> Check:
    """The check of an unusual difference, compared with what rounding does to the function."""
    if found.worst <= _ZERO and noise.allowed >= found.scale and not found.unlike:
        words = "Everything cancels to about zero: what is left is rounding"
        return Check(check.name, True, f"{check.detail} {words}.")
    floor = allowed * (found.typical_scale + 1e-3 * found.scale)
    if not noise.explains(found.worst, found.unlike, found.typical, floor):
        if check.ok:  # the largest values agree, and hide a block of small ones
            words = f"In one block the median difference is {max(found.typical):.2g}"
            detail = f"{check.detail} {words}, as large as the values there."
            return Check(check.name, False, detail)
        return check
    if check.ok:
        return check
    moves = f"moves by {noise.worst:.2g}" if noise.worst else "changes as well"
    if noise.unlike:
        moves += f", and {plural(noise.unlike, 'element')} otherwise,"
    detail = (
        f"{check.detail} The unsharded function itself {moves} when its arguments move by one"
        " rounding step"
    )
    if noise.inconclusive(found.scale):
        words = "so this decides nothing: it amplifies rounding too much for these values"
        return Check(check.name, None, f"{detail}, {words}. Give values of your own to sv.run.")
    return Check(check.name, True, f"{detail}: this is rounding.")


# Every operation rounds, not the arguments alone: results may lie this many times farther apart.
MARGIN = 4.0
# Beyond this fraction of the values, rounding looks like a mistake.
_INCONCLUSIVE = 0.25
_DRAWS = 2
_NARROW = re.compile(r"[x<](bf16|f16|f8E\dM(\d)\w*|f4E\dM(\d)\w*)>")
_BITS = {"bf16": 7, "f16": 10}
# Of float32 products on chips that multiply it in fewer bits: bfloat16 passes, and TF32.
_PRODUCTS = {"tpu": 2.0**-7, "gpu": 2.0**-10, "cuda": 2.0**-10, "rocm": 2.0**-10}


@dataclass(frozen=True)
class Noise:
    """What one rounding step of the arguments does to one result.

    Attributes:
        worst: the largest change of an element.
        unlike: how many elements changed that must be equal, or are finite in one run only.
        typical: the median change in each block.
    """

    worst: float
    unlike: int
    typical: tuple[float, ...]

    @property
    def allowed(self) -> float:
        """How far results may be apart from rounding alone."""
        return MARGIN * self.worst

    def explains(self, worst: float, unlike: int, typical: Sequence[float], floor: float) -> bool:
        """Whether rounding explains a difference.

        Args:
            worst: the largest difference.
            unlike: how many elements must be equal and are not.
            typical: the median difference of each block.
            floor: what is always allowed in a typical element.

        >>> Noise(0.01, 0, (0.001,)).explains(0.02, 0, [0.002], 0.0)
        True
        >>> Noise(0.01, 0, (0.001,)).explains(0.02, 0, [0.02], 0.0)
        False
        """
        blocks = zip(typical, self.typical, strict=True)
        return (
            worst <= self.allowed
            and unlike <= MARGIN * self.unlike
            and all(apart <= MARGIN * own + floor for apart, own in blocks)
        )

    def inconclusive(self, scale: float) -> bool:
        """Whether rounding changes the values so much that it could hide a mistake."""
        return self.unlike > 0 or self.allowed > _INCONCLUSIVE * scale


def step_of(text: str, platform: str) -> float:
    """The relative rounding error of one operation: half a step of the narrowest floats in a text.

    >>> step_of("tensor<8x8xbf16>, tensor<f32>", "cpu"), step_of("tensor<8xf8E4M3FN>", "cpu")
    (0.00390625, 0.0625)
    """
    steps = [_PRODUCTS.get(platform, 0.0)]
    for kind, eight, four in set(_NARROW.findall(text)):
        steps.append(2.0 ** -(_BITS.get(kind) or int(eight or four)))
    return max(steps) / 2


def moved_results(
    run: Callable[..., Sequence[jax.Array]], inputs: Sequence[jax.Array], step: float
) -> list[list[jax.Array]]:
    """Two results of a function, each for arguments moved by one rounding step up or down.

    Args:
        run: the unsharded function, compiled.
        inputs: its arguments.
        step: the least relative step; an argument moves by that of its dtype where that is larger.
    """
    found = []
    for draw in range(_DRAWS):
        moved = [_moved(value, step, 1000 * draw + i) for i, value in enumerate(inputs)]
        found.append(list(jax.block_until_ready(run(*moved))))
    return found


def _moved(value: jax.Array, step: float, seed: int) -> jax.Array:
    if not jax.numpy.issubdtype(value.dtype, jax.numpy.inexact):
        return value
    own = float(jax.numpy.finfo(value.dtype).eps)
    host = np.asarray(value)
    signs = np.random.default_rng(seed).integers(0, 2, host.shape) * 2 - 1
    wide = np.promote_types(host.dtype, np.float32) if host.dtype.kind in "fc" else np.float32
    moved = host.astype(wide) * (1 + max(step, own) * signs).astype(np.float64)
    return jax.device_put(moved.astype(host.dtype), value.sharding)


class _Difference:
    """How far blocks are apart from those of a reference."""

    def __init__(self, reference: np.ndarray) -> None:
        self.reference = reference
        self.worst = self.scale = 0.0
        self.unlike = self.not_finite = 0
        self.typical: list[float] = []
        self._scales: list[float] = []

    @property
    def typical_scale(self) -> float:
        """The median, over the blocks, of the median absolute value."""
        return float(np.median(self._scales)) if self._scales else 0.0

    @property
    def hidden(self) -> bool:
        """Whether larger values elsewhere may hide a wrong block of small ones."""
        pairs = zip(self.typical, self._scales, strict=True)
        return any(apart > _HIDDEN * size for apart, size in pairs)

    def add(self, block: np.ndarray, index: tuple[slice, ...]) -> None:
        other = self.reference[index]
        if block.dtype.kind in "iub" or dtype_name(block.dtype).startswith(("int", "uint")):
            self.unlike += int((block != other).sum())
            self.typical.append(0.0)
            self._scales.append(0.0)
            return
        wide = np.complex128 if block.dtype.kind == "c" else np.float64
        block, other = block.astype(wide), other.astype(wide)
        finite = np.isfinite(block) & np.isfinite(other)
        # Where one is not finite both must be the same: NaN with NaN, inf with inf.
        same = (block == other) | (np.isnan(block) & np.isnan(other))
        self.unlike += int((~finite & ~same).sum())
        self.not_finite += int((~finite & same).sum())
        apart = np.abs(block[finite] - other[finite])
        self.worst = max(self.worst, float(apart.max(initial=0.0)))
        self.scale = max(self.scale, float(np.abs(other[finite]).max(initial=0.0)))
        self.typical.append(float(np.median(apart)) if apart.size else 0.0)
        self._scales.append(float(np.median(np.abs(other[finite]))) if apart.size else 0.0)

    def check(self, title: str, allowed: float, absolute: float) -> Check:
        if allowed == 0.0:
            detail = "Equal to the unsharded function, element by element."
            if self.unlike:
                detail = f"{plural(self.unlike, 'element')} differ from the unsharded function's."
            return Check(title, not self.unlike, detail)
        relative = self.worst / self.scale if self.scale else math.inf if self.worst else 0.0
        detail = (
            f"Largest difference from the unsharded function: {self.worst:.2g}, which is"
            f" {relative:.2g} of the largest value {self.scale:.3g}; allowed is {allowed:g} of it."
        )
        if self.unlike:
            detail += f" {plural(self.unlike, 'element')} finite in one of the two only."
        if self.not_finite:
            detail += f" {plural(self.not_finite, 'element')} NaN or infinite in both."
        within = self.worst <= allowed * self.scale + absolute
        return Check(title, within and not self.unlike, detail)


def shards_check(name: str, layout: Layout, array: jax.Array, ids: Mapping[Any, int]) -> Check:
    """The shard indices of a layout, compared with the shards that the devices hold.

    Args:
        name: the name of the array.
        layout: the predicted layout.
        array: the live array.
        ids: jax device to its id in the layout.
    """
    if partial := partial_sums(array):
        return Check(f"{name}: indices", None, partial)
    shards = array.addressable_shards
    title = f"{name}: indices of {plural(len(shards), 'shard')}{_here(ids)}"
    for shard in shards:
        device = ids.get(shard.device)
        if device is None:
            return Check(title, False, f"A shard is on {shard.device}, outside the mesh.")
        predicted = [(s.start, s.stop) for s in layout.box(device)]
        # Random keys have an index for their words too, after those of their shape.
        found = [s.indices(n)[:2] for s, n in zip(shard.index, array.shape, strict=False)]
        if found != predicted or shard.data.shape != layout.shard_shape:
            return Check(
                title,
                False,
                f"Device {device} holds {_index_text(found)} as {list(shard.data.shape)};"
                f" the layout puts {_index_text(predicted)} there, {list(layout.shard_shape)}.",
            )
    if len(shards) != len(own_devices(list(ids))):
        some = f"{plural(len(shards), 'device')} of {len(ids)}"
        if len(shards) == layout.mesh.size:
            return Check(title, True, f"On {some}, as compiled: jax asked for no others.")
        return Check(title, False, f"Only {some} hold it.")
    each = f"{layout.dtype}{list(layout.shard_shape)} each"
    return Check(title, True, f"Every shard is where the layout puts it, {each}.")


def _here(devices: Iterable[Any]) -> str:
    """Whose shards are checked, where there are several processes."""
    several = len(processes_of(list(devices))) > 1
    return f" in process {jax.process_index()}" if several else ""


def partial_sums(array: jax.Array) -> str | None:
    """What to say of an array whose shards are partial sums; None for any other."""
    axes = partial_axes(array)
    if not axes:
        return None
    return (
        f"Every device holds a partial sum, unreduced over {listed(axes)}; jax gives no"
        " shard indices or values of such an array."
    )


def output_layouts(
    outputs: Sequence[Output], shardings: Sequence[Any], mesh: MeshSpec, ids: Mapping[Any, int]
) -> tuple[dict[str, Layout], list[Check]]:
    """The Layout of every output by name, and a Check for each that has none.

    Args:
        outputs: the outputs.
        shardings: jax's sharding of each, as compiled.
        mesh: the mesh of the program.
        ids: jax device to its id in that mesh, in mesh order.
    """
    layouts: dict[str, Layout] = {}
    without: list[Check] = []
    for output, sharding in zip(outputs, shardings, strict=True):
        try:
            layouts[output.name] = _layout(output, sharding, mesh, ids)
        except LayoutError as error:
            without.append(Check(f"{output.name}: layout", None, str(error)))
    return layouts, without


def spec_checks(
    outputs: Sequence[Output],
    specs: Sequence[Spec | None],
    mesh: MeshSpec,
    layouts: Mapping[str, Layout],
) -> list[Check]:
    """The spec requested for each output, compared with the compiler's layout."""
    return [
        _spec_check(o.name, s, lay_out(o.shape, s, mesh, o.dtype), layouts.get(o.name))
        for o, s in zip(outputs, specs, strict=True)
        if s is not None
    ]


def _spec_check(name: str, wanted: Spec, layout: Layout, found: Layout | None) -> Check:
    title = f"{name}: out_specs"
    if found is None:
        return Check(title, False, f"{wanted} was requested and the blocks differ in shape.")
    same = np.array_equal(layout.groups, found.groups) and layout.shard_shape == found.shard_shape
    how = found.spec if found.spec is not None else "other shard indices"
    return Check(title, same, f"{wanted} was requested and the compiler gives {how}.")


def _layout(output: Output, sharding: Any, mesh: MeshSpec, ids: Mapping[Any, int]) -> Layout:
    if isinstance(sharding, NamedSharding) and _same_axes(sharding.mesh, mesh):
        try:
            return lay_out(output.shape, adopt_spec(sharding.spec), mesh, output.dtype)
        except LayoutError:
            pass  # a compiler may split what does not divide: its shard indices say how
    indices = sharding.devices_indices_map(output.shape)
    by_id = {name: indices[device] or () for device, name in ids.items() if device in indices}
    complete = len(by_id) == mesh.size
    return layout_from_indices(output.shape, output.dtype, by_id, mesh if complete else None)


def _same_axes(mesh: Any, spec: MeshSpec) -> bool:
    return tuple(mesh.axis_names) == spec.axis_names and tuple(mesh.axis_sizes) == spec.axis_sizes


def _index_text(bounds: Sequence[tuple[int, int]]) -> str:
    return "[" + ", ".join(f"{a}:{b}" for a, b in bounds) + "]"


@copies_allowed()
def unsharded_checks(
    program: Program,
    lowered: Lowered,
    executable: Executable,
    devices: Sequence[Any],
    inputs: Inputs,
    lower: Callable[[Program, Mesh], Lowered],
    results: Sequence[jax.Array],
) -> tuple[Check, ...]:
    """One Check per output, or one that says why there is nothing to compare with.

    Args:
        program: what ran.
        lowered, executable: the program as it was lowered and compiled.
        devices: where it ran.
        inputs: the values it ran with.
        lower: lowers the unsharded function for one device.
        results: its outputs.
    """
    if not results:
        return ()
    if reason := why_not_comparable(program, lowered, devices) or inputs.elsewhere:
        return (Check(_UNSHARDED, None, reason),)
    single = unsharded(program)
    try:
        return _compared(
            lambda mesh: compile_lowered(lower(single, mesh), single.mesh),
            single,
            lowered,
            executable,
            devices,
            inputs,
            results,
        )
    except Exception as error:  # noqa: BLE001  a function may be made for many devices only
        return (Check(_UNSHARDED, None, f"It does not run on one device. {said_by(error)}"),)


def unsharded(program: Program) -> Program:
    """The program on a mesh of the same axes, all of size 1: nothing is split.

    >>> from shardviz.core.layout.array_spec import ArraySpec
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> program = Program(abs, (ArraySpec("x", (8,)),), make_mesh(data=4, model=2))
    >>> unsharded(program).mesh.shape
    {'data': 1, 'model': 1}
    """
    mesh = program.mesh
    ones = MeshSpec(mesh.axis_names, (1,) * len(mesh.axis_sizes), mesh.axis_types)
    options = {k: v for k, v in program.options.items() if k != "donate"}
    arrays = tuple(a.replace(spec=Spec()) for a in program.arrays)
    return program.replace(mesh=ones, arrays=arrays, out_specs=None, options=options)


def why_not_comparable(program: Program, lowered: Lowered, devices: Sequence[Any]) -> str | None:
    """Why a program is not run unsharded, in words; None where it can be."""
    if program.mesh.size == 1:
        return "The mesh has one device: what ran is the unsharded function."
    if lowered.effects:
        return (
            f"Not compared: the program has effects ({listed(lowered.effects)}), and a second run"
            " would repeat them."
        )
    size = sum(a.bytes for a in program.arrays) + sum(
        o.dtype.itemsize * math.prod(o.shape) for o in lowered.traced.outputs
    )
    return _too_big(Memory(arguments=size), devices)


def _compared(
    compile_on: Callable[[Mesh], Executable],
    program: Program,
    lowered: Lowered,
    executable: Executable,
    devices: Sequence[Any],
    inputs: Inputs,
    results: Sequence[jax.Array],
) -> tuple[Check, ...]:
    mesh = mesh_of(_first_here(devices), program.mesh)
    make = functools.partial(compile_on, mesh)
    # Kept with the executable: the same text is the same function.
    single = executable.reference(make) if lowered.cacheable else make()
    if reason := _too_big(single.memory, devices):
        return (Check(_UNSHARDED, None, reason),)
    arguments = inputs.place_unsharded(mesh)
    if lowered.cacheable:
        expected = single.results_of(arguments)
    else:
        expected = jax.block_until_ready(single.run(*arguments))
    dtypes = [i.dtype for i in arguments if not jax.numpy.issubdtype(i.dtype, jax.dtypes.prng_key)]
    platform = devices[0].platform
    moved = functools.cache(
        lambda: moved_results(single.run, arguments, step_of(lowered.text, platform))
    )
    found = tuple(
        values_check(
            output.name,
            results[i],
            expected[i],
            dtypes,
            platform,
            lambda i=i: [r[i] for r in moved()],
        )
        for i, output in enumerate(lowered.traced.outputs)
    )
    return tuple(map(_undecided, found)) if lowered.manual else found


def _first_here(devices: Sequence[Any]) -> list[Any]:
    """The first of the devices that belongs to this process; each process compares by itself."""
    return (own_devices(devices) or list(devices))[:1]


def _undecided(check: Check) -> Check:
    """Inside `shard_map` a function sees its device coordinates, and may differ on one device."""
    if check.ok is not False:
        return check
    detail = (
        f"{check.detail} The program has shard_map regions, whose results may depend on the number"
        " of devices, so this decides nothing."
    )
    return Check(check.name, None, detail)


def _too_big(memory: Memory, devices: Sequence[Any]) -> str | None:
    capacity = capacity_of(devices[:1])
    if refusal(memory, capacity, 1) is None:
        return None
    return (
        f"Not compared: on one device it needs {bytes_text(run_bytes(memory))}, and"
        f" {bytes_text(capacity.free or 0)} are free."
    )
