"""Exercises on placement, rooflines and networks (lessons 2, 3 and 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardviz.base.collective import Collective
from shardviz.base.format import joined, seconds_text
from shardviz.base.layout import lay_out
from shardviz.base.mesh import make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.base.public.layouts import array as make_array
from shardviz.base.typing import UserFunction
from shardviz.compiled.roofline import planned_roofline
from shardviz.exercises import words
from shardviz.exercises.answers import (
    Answer,
    Wrong,
    check_number,
    read_names,
    require,
    same_names,
)
from shardviz.exercises.programs import planned
from shardviz.exercises.registry import Setup, add
from shardviz.exercises.your_code import check_function, on_shards, ran
from shardviz.hardware.chips import find_chip
from shardviz.hardware.interconnect import collective_link_use
from shardviz.hardware.targets import Target
from shardviz.hardware.topology import Topology
from shardviz.programs.program import Program
from shardviz.programs.public.programs import program

# Lesson 2: running.

_LINES: Mapping[str, tuple[str, UserFunction]] = {
    "pair": ("a + b", lambda a, b, c, s: a + b),
    "loose": ("a + c", lambda a, b, c, s: a + c),
    "spread": ("s + c", lambda a, b, c, s: s + c),
    "mixed": ("s + a", lambda a, b, c, s: s + a),
    "moved": ("a + jax.device_put(b, a.sharding)", lambda a, b, c, s: a + _put(b, a)),
    "jitted": ("jax.jit(jnp.add)(a, b)", lambda a, b, c, s: _jitted_sum(a, b)),
}


def _put(array: Any, like: Any) -> Any:
    import jax

    return jax.device_put(array, like.sharding)


def _jitted_sum(a: Any, b: Any) -> Any:
    import jax

    return jax.jit(lambda a, b: a + b)(a, b)


def _devices(count: int) -> Sequence[Any]:
    """Returns the first devices of this process.

    Raises:
        Wrong: if this process has fewer devices.
    """
    import jax

    devices = jax.devices()
    if len(devices) < count:
        raise Wrong(
            f"This exercise runs on {count} devices, and JAX has {len(devices)} here. Set"
            f" jax_num_cpu_devices to {count} before JAX is first used."
        )
    return devices[:count]


def _refused() -> list[str]:
    """Returns the names of the lines that raise, by running them."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    devices = _devices(4)
    a = jax.device_put(jnp.ones(8), devices[1])
    b = jax.device_put(jnp.ones(8), devices[2])
    halves = NamedSharding(Mesh(np.array(devices), ("x",)), PartitionSpec("x"))
    s = jax.device_put(jnp.ones(8), halves)
    names = []
    for name, (_, line) in _LINES.items():
        try:
            line(a, b, jnp.ones(8), s)
        except ValueError:
            names.append(name)
    return names


@add(
    "running/refused",
    task="""
`jax.device_put` has put `a` on device 1 and `b` on device 2. `c` is a new `jnp.ones(8)`. `s` is split over
devices 0 to 3. Which of these lines does JAX refuse? Answer with their names.
""",
    given=lambda: Setup(
        lines="".join(f"\n    {name}: {text}" for name, (text, _) in _LINES.items())
    ),
    hints=(
        "Which of the four arrays are committed to devices?",
        "JAX moves only uncommitted arrays. Are all committed operands of a line on the same devices?",
        "`jax.jit` makes no difference: its committed arguments must be on the same devices, too.",
    ),
    solution="pair, mixed, jitted",
    why=(
        "Only `c` is uncommitted, so JAX moves `c` to the devices of the other operand. The three lines that JAX refuses have "
        "operands committed to different devices."
    ),
)
def running_refused(setup: Setup, answer: Answer) -> str:
    names = read_names(answer, _LINES, "The lines")
    return same_names(names, _refused())


def _both_layers(x: Any, w_in: Any, w_out: Any) -> Any:
    return (x @ w_in) @ w_out


@add(
    "running/arguments",
    task="""
How many bytes of arguments does each device hold while `program` runs? Answer with a number of bytes, or
with text and a unit.
""",
    given=lambda: Setup(
        mesh=make_mesh("rack=4, chip=4"),
        program=_two_layers(),
        arrays=_two_layers().arrays,
    ),
    hints=(
        "Each device holds one shard of every argument.",
        "An axis that a spec leaves out doesn't make that array's shards smaller.",
        "`sv.compile(program).memory` lists the bytes of arguments on each device.",
    ),
    solution="2.5 MiB",
    why="Each array is split over one axis, so each device holds a quarter of it: 0.5 MiB of `x`, and 1 MiB of each weight.",
)
def running_arguments(setup: Setup, answer: Answer) -> str:
    right = 0
    for array in setup.arrays:
        layout = lay_out(array.shape, array.spec or Spec(), setup.mesh, array.dtype)
        right += layout.bytes_per_device
    whole = sum(array.bytes for array in setup.arrays)
    mistakes = {
        whole
        / right: "that is the size of the unsplit arguments, but each of them is split.",
        whole
        / setup.mesh.size
        / right: "that divides all arguments by all devices, but no array is split over both axes.",
        1 / 2: "that counts 2 bytes per element; look at the dtype.",
    }
    return check_number(answer, right, "bytes", mistakes)


def _two_layers() -> Program:
    return program(
        _both_layers,
        make_array("x", (1024, 512), spec="rack"),
        make_array("w_in", (512, 2048), spec="None, chip"),
        make_array("w_out", (2048, 512), spec="chip"),
        mesh=make_mesh("rack=4, chip=4"),
    )


def _meet(a: Any, b: Any, device: Any) -> Any:
    import jax

    return jax.device_put(a, device) @ jax.device_put(b, device)


@add(
    "running/meet",
    task="""
`a` is committed to device 1 and `b` to device 2. Write a function of `a`, `b` and a `device` that returns the
product `a @ b` on that device.
""",
    given=lambda: Setup(
        arrays=(make_array("a", (64, 32)), make_array("b", (32, 16))), device=3
    ),
    hints=(
        "What happens if you multiply `a` and `b` where they are?",
        "An operation runs where its operands are, so bring both operands to one place.",
        "`jax.device_put` accepts a device as its second argument.",
    ),
    solution=_meet,
    why="Both operands move to the device, and the product runs on the device that holds its operands.",
)
def running_meet(setup: Setup, answer: Answer) -> str:
    function = check_function(setup, answer)
    import jax

    devices = _devices(4)
    rng = np.random.default_rng(0)
    values = [rng.integers(0, 4, array.shape) for array in setup.arrays]
    placed = []
    for value, device in zip(values, devices[1:3], strict=True):
        placed.append(jax.device_put(value.astype("float32"), device))
    try:
        result = function(*placed, devices[setup.device])
    except Exception as error:  # noqa: BLE001  an answer may raise anything
        raise Wrong(words.raises(error)) from None
    require(
        isinstance(result, jax.Array),
        f"Your function returns {type(result).__name__}, not an array.",
    )
    where = sorted(device.id for device in result.devices())
    does = f"The result is on device {joined(map(str, where))}."
    require(where == [devices[setup.device].id], f"{does} It should be on device 3.")
    right = values[0] @ values[1]
    require(
        result.shape == right.shape and np.allclose(result, right),
        f"{does} But it is not the product.",
    )
    return does


# Lesson 3: rooflines.

_V5P, _H100, _V5E = find_chip("v5p"), find_chip("h100"), find_chip("v5e")


@add(
    "roofline/rows",
    task="""
`x` has B rows of `width` numbers, and `w` has shape `[width, width]`, both in bfloat16. A chip computes
`peak` operations per second, and reads or writes `memory` bytes per second. With how many rows does the
arithmetic of `x @ w` take as long as its memory traffic? Count `w`, `x` and the result.
""",
    given=lambda: Setup(width=8192, peak=_V5P.peak_bf16, memory=_V5P.hbm_bandwidth),
    hints=(
        "Each of the B rows needs two operations per element of `w`.",
        "The chip reads `w` once and B rows of `x`, and writes B rows of the result.",
        "Divide the operations by `peak` and the bytes by `memory`, set the two equal, and solve for B.",
    ),
    solution="173",
    why=(
        "The ratio of the two rates is 166 operations per byte. If only `w` were read, 166 rows would be enough. "
        "`x` and the result add some traffic, so a few more rows are needed."
    ),
)
def roofline_rows(setup: Setup, answer: Answer) -> str:
    width, ridge = setup.width, setup.peak / setup.memory
    # 2 B w² / peak = 2 (w² + 2 B w) / memory
    right = ridge * width / (width - 2 * ridge)
    mistakes = {
        ridge / right: "that counts the bytes of `w` alone.",
        ridge
        * width
        / (width - ridge)
        / right: "that counts only one of `x` and the result.",
        2 * ridge * width / (width - 4 * ridge) / right: (
            "that counts one operation per element, but a product multiplies and adds."
        ),
    }
    return check_number(answer, right, "rows", mistakes, tolerance=0.004)


@add(
    "roofline/elementwise",
    task="""
What is the least time of `jax.nn.gelu(x)` on a chip that reads or writes `memory` bytes per second, if it is
not fused with another operation? Answer in seconds, or with text and a unit.
""",
    given=lambda: Setup(
        x=make_array("x", (8192, 16384), dtype="bfloat16"), memory=_H100.hbm_bandwidth
    ),
    hints=(
        "A GELU needs a few operations per element. Is that a lot for the bytes that it moves?",
        "An elementwise operation waits for memory. How many bytes does it move?",
        "A GELU reads every element once and writes every element once.",
    ),
    solution="160 us",
    why="Each element is read once and written once, 2 bytes each time, and that takes longer than the arithmetic.",
)
def roofline_elementwise(setup: Setup, answer: Answer) -> str:
    mistakes = {
        1 / 2: "that is for reading `x`, but the result must be written, too.",
        2: "that counts 4 bytes per element; look at the dtype of `x`.",
        1 / 4: "that counts one byte per element.",
    }
    right = 2 * setup.x.bytes / setup.memory
    return check_number(answer, right, "seconds", mistakes, tolerance=0.01)


@add(
    "roofline/int8",
    task="""
A chip computes `peak` operations per second, and reads `memory` bytes per second. The weights are stored in
int8, one byte each, and are converted to bfloat16 on the chip for the product. With how many rows of `x` does
the arithmetic take as long as reading the weights? Neglect the bytes of `x` and of the result.
""",
    given=lambda: Setup(peak=_V5E.peak_bf16, memory=_V5E.hbm_bandwidth),
    hints=(
        "How many operations does one weight need if there are B rows?",
        "How many bytes does the chip read for one weight?",
        "Set 2 B / peak equal to the time for reading one weight.",
    ),
    solution="120",
    why="A weight of one byte takes two operations per row, so the number of rows is half of the ratio of the two rates.",
)
def roofline_int8(setup: Setup, answer: Answer) -> str:
    mistakes: dict[float, str] = {
        2: "that is for reading two bytes per weight, but an int8 has one.",
        4: "that counts one operation per weight and row, and two bytes per weight.",
    }
    right = setup.peak / setup.memory / 2
    return check_number(answer, right, "rows", mistakes, tolerance=0.01)


def _right_to_left(A: Any, B: Any, v: Any) -> Any:
    return A @ (B @ v)


@add(
    "roofline/chain",
    task="""
Write a function of `A`, `B` and `v` that returns `A @ B @ v` and takes at most `most` seconds on one chip of
TPU v5e, according to the roofline of its operations.
""",
    given=lambda: Setup(
        mesh=make_mesh("x=1"),
        arrays=(
            make_array("A", (2048, 2048)),
            make_array("B", (2048, 2048)),
            make_array("v", (2048, 8)),
        ),
        most=6e-5,
    ),
    hints=(
        "In which order does Python multiply, and how many operations does that take?",
        "Matrix products can be grouped in two ways. Count the operations of each.",
        "A product with few columns takes as long as reading its matrix once. Two such products are enough.",
    ),
    solution=_right_to_left,
    why="Grouped from the right, both products have 8 columns, so the chip only has to read `A` and `B` once.",
)
def roofline_chain(setup: Setup, answer: Answer) -> str:
    function = check_function(setup, answer)
    submitted = program(
        lambda *arrays: function(*arrays), *setup.arrays, mesh=setup.mesh
    )
    ran(submitted, lambda a, b, v: a @ (b @ v))
    least = planned_roofline(
        planned(submitted), Topology.parse("tpu:v5e:1x1"), setup.mesh
    )
    require(
        not least.has_unknown_trips,
        "Your function has a loop without a fixed number of rounds.",
    )
    parts = [f"{part} {seconds_text(seconds)}" for part, seconds in least.parts.items()]
    does = f"At least {seconds_text(least.seconds)}: {joined(parts)}."
    require(
        least.seconds is not None and least.seconds <= setup.most,
        f"{does} Your function should take at most {seconds_text(setup.most)}.",
    )
    return does


# Lesson 5: on a torus.

_TORUS = Topology.parse("tpu:v5e:16x16")


@add(
    "torus/ring-seconds",
    task="""
What is the least time of an all-gather over `axis` that leaves a result of `bytes` bytes on each chip? A link
carries `link_rate` bytes per second in each direction. Each axis of the mesh lies along one axis of the slice.
Ignore latency. Answer in seconds.
""",
    given=lambda: Setup(
        topology=_TORUS,
        mesh=make_mesh("y=16, x=16"),
        axis="x",
        bytes=1073741824,
        link_rate=_TORUS.chip.link_bandwidth,
    ),
    hints=(
        "Do the chips along this axis form rings? `topology.wraps` shows that.",
        "On a ring, data goes both ways at the same time, and a chip sends all parts but one.",
        "So each of the two links that a chip has on the ring carries half of these parts.",
    ),
    solution="10 ms",
    why="Sixteen chips form a ring. Each sends 15/16 of the result, half of it in each direction.",
)
def torus_ring_seconds(setup: Setup, answer: Answer) -> str:
    mistakes = {
        2: "that is for one direction of the ring, but each direction carries half of the bytes.",
        1
        / 2: "that is for the links of both axes, but the ring has only those of one.",
        0.13: "that is the time to read the result from memory, but here the data crosses links.",
        8: "that counts bits, but the rate is in bytes.",
        2
        / 15: "that is one step of the ring, in which a chip sends one of sixteen parts.",
    }
    gather = Collective("all-gather", (setup.axis,), setup.bytes)
    use = collective_link_use(gather, setup.mesh, setup.topology)
    assert use is not None  # the mesh has this axis
    right = max(seconds or 0.0 for seconds in use.times(setup.bytes).values())
    return check_number(answer, right, "seconds", mistakes, tolerance=0.08)


@add(
    "torus/all-rings",
    task="""
Name a TPU slice of `chips` chips in which the chips along every axis form rings. Answer with a topology, in
a form that `sv.topology` accepts.
""",
    given=lambda: Setup(chips=192),
    hints=(
        "Not every generation of TPU has a torus with three axes, and in some only axes of full length are rings.",
        "`sv.topology(…).wraps` shows which axes are rings.",
        "In generations with three axes, all axes are rings if the slice is made of whole cubes of 4×4×4 chips.",
    ),
    solution="tpu:v5p:4x4x12",
    why=(
        "The chips of v4, v5p and 7x are joined in cubes of 4×4×4, and the axes of a slice of whole cubes are "
        "rings. On v5e and v6e an axis is a ring only if it is 16 chips long."
    ),
)
def torus_all_rings(setup: Setup, answer: Answer) -> str:
    if isinstance(answer, Target):
        answer = answer.topology or answer.name
    if not isinstance(answer, Topology):
        answer = Topology.parse(answer)
    does = f"{answer}: {answer.words()}"
    require(
        answer.chip.platform == "tpu", f"{does} The answer must be a slice of TPUs."
    )
    require(answer.slices == 1, f"{does} The answer must be a single slice.")
    require(answer.chips == setup.chips, f"{does} The slice must have 192 chips.")
    require(all(answer.wraps), f"{does} Not every axis is a ring.")
    return does


@add(
    "torus/small",
    task="""
An all-gather runs both ways around a ring of `chips` chips. A link carries `link_rate` bytes per second in
each direction, and each hop from chip to chip takes `hop` seconds, however little is sent. At which size of
the result do the hops take as long as sending the bytes? Answer with a number of bytes, or with text and a
unit.
""",
    given=lambda: Setup(chips=8, link_rate=_V5P.link_bandwidth, hop=_V5P.hop_latency),
    hints=(
        "How many hops away is the farthest chip, if data is sent both ways?",
        "Each chip receives all parts but its own, half of them over each of its two links.",
        "Set the number of hops × `hop` equal to (n − 1)/n of the bytes, divided by the rate of two links.",
    ),
    solution="914 KB",
    why="The farthest chip is four hops away, which takes 4 µs. In this time two links carry 7/8 of the result.",
)
def torus_small(setup: Setup, answer: Answer) -> str:
    chips = setup.chips
    right = chips // 2 * setup.hop * 2 * setup.link_rate * chips / (chips - 1)
    mistakes = {
        2: "that counts 8 hops, but data goes both ways around the ring.",
        7 / 4: "that counts 7 hops, but data goes both ways around the ring.",
        1 / 2: "that is for one link, but data goes both ways around the ring.",
        7
        / 8: "that is for receiving the whole result, but a chip has its own part already.",
        1 / 4: "that counts one hop.",
        7 / 8 / 2: "that is for one link, and for receiving the whole result.",
    }
    return check_number(answer, right, "bytes", mistakes, tolerance=0.01)


def _gather_twice(part: Any) -> Any:
    from jax import lax

    row = lax.all_gather(part, "y", tiled=True)
    return lax.all_gather(row, "x", tiled=True)


@add(
    "torus/axis-by-axis",
    task="""
The rows of `part` are split over both axes of a torus, `x` first. Write the function that each device runs
inside `jax.shard_map`. The function gets the device's rows, and returns the rows of all devices, in order.
Use two all-gathers, each over one axis.
""",
    given=lambda: Setup(
        mesh=make_mesh("x=4, y=2"),
        arrays=(make_array("part", (1024, 256), spec="(x, y)"),),
    ),
    hints=(
        "Which devices have parts that are next to each other in the result?",
        "`x` is the major axis: the devices along `y` hold consecutive rows.",
        "Gather over the minor axis first. `tiled=True` joins the parts along their rows.",
    ),
    solution=_gather_twice,
    why="After the gather over `y`, a device has consecutive rows, and the gather over `x` puts these in order.",
)
def torus_axis_by_axis(setup: Setup, answer: Answer) -> str:
    submitted = on_shards(setup, answer, "(x, y)")
    report = ran(submitted, lambda part: np.concatenate([part] * setup.mesh.size))
    collectives = report.partitioned or ()
    does = f"Your function: {words.moves(collectives)}."
    gathers = [c for c in collectives if c.kind == "all-gather"]
    require(len(gathers) == len(collectives), f"{does} Use only all-gathers.")
    axes = sorted(axis for c in gathers for axis in c.mesh_axes)
    require(
        axes == ["x", "y"] and len(gathers) == 2,
        f"{does} Gather over each axis once.",
    )
    return does
