"""Titles, column heads, notes and alt texts of pictures and tables."""

from __future__ import annotations

from collections.abc import Sequence

from shardviz.base.format import bytes_text, clause, joined, plural
from shardviz.base.layout import Layout
from shardviz.base.mesh import MeshSpec

NOT_ON_MESH = "not on the mesh"
LARGEST_FIRST = "Bytes per device, the largest first:"
COST_UNKNOWN = "its cost is not known"
PART = "part of the program"
OPERATION = "operation, before XLA fuses it"
MEASURED = "measured times"
DIFFERENCES = "measured time per call and least time, largest difference first:"
LONGEST = "measured time per call, longest first (no least times for these devices):"
OPS_OF_DEVICE = "operations on each device, before XLA fuses them:"


def memory_of_processes(sizes: Sequence[str]) -> str:
    """Lists the memory of each process of a run."""
    return f"memory of the processes: {', '.join(sizes)}"


def median_of(runs: int) -> str:
    """Labels a time as the median of several runs."""
    return f"median of {runs} runs"


def collectives_head(count: int) -> str:
    """The line above a list of collectives.

    >>> collectives_head(3)
    '3 collectives, bytes sent per device:'
    """
    return f"{plural(count, 'collective')}, bytes sent per device:"


def least_times(where: str) -> str:
    """The title of a roofline."""
    return f"least times on {where}"


def latency(seconds: str) -> str:
    """The share of a collective's least time that is latency."""
    return f"{seconds} of it latency"


def indivisible(parts: int) -> str:
    """Notes in a cell that the size is not a multiple of the number of shards."""
    return f"not divisible by {parts:,}"


def audit_head(arrays: int, mesh: object, size: str, left_out: object) -> str:
    """The title of an audit: arrays, mesh and bytes per device."""
    return f"{plural(arrays, 'array')} on {mesh}: {size}{left_out}"


def report_state(
    failed: bool, ok: bool, too_large: bool = False, compiled: bool = True
) -> str:
    """The outcome of a compile or run."""
    if too_large:
        return "does not fit"
    if failed:
        return "failed"
    if ok and not compiled:
        return "not compiled"
    return "ok" if ok else "a check failed"


#: Ends the line of a compiler's costs if the program has loops.
LOOPS_ONCE = "; each loop's body is counted once"


def memory_lines(device: str, host: str) -> list[str]:
    """The memory that a program needs on each device and on the host."""
    lines = []
    if device:
        lines.append(f"memory per device: {device}")
    if host:
        lines.append(f"and in the host's memory, per device: {host}")
    return lines


NO_BUFFERS = "The compiler did not report its buffers."
AT_THE_PEAK = "bytes per device at the peak"
OVER_TIME = "instructions, in the order in which they run →"
ALIVE = "alive at the peak, the largest first:"
BEGINNING = "the beginning"


NO_DIMENSION = "no dimension is split"
LEFT_TO_COMPILER = "left to the compiler"


def other_rules(numbers: str) -> str:
    """Lists the rules without a row in the picture of a long table."""
    return f"rules for other names, or not shown: {numbers}"


def other_patterns(numbers: str) -> str:
    """Lists the patterns without a row in the picture of a long table."""
    return f"patterns that do not match, or not shown: {numbers}"


SPLIT_UNKNOWN = "Its sharding is unknown."


def spec_overrides(spec: object) -> str:
    """Notes that an explicit spec overrides the spec from the rules."""
    return f"The explicit spec overrides the rules, which give {spec}."


LARGEST_COLLECTIVES = "estimated collectives, bytes sent per device:"
LARGEST_VALUES = "values, the largest on each device first:"


def largest_values_first(count: int) -> str:
    """Explains the order of the values in a long plan, and how to show all of them."""
    return (
        "The values with the largest estimated collectives come first, then those that"
        f" take the most memory on each device. limit={count} shows all, in the order of the"
        " program."
    )


def by_block(array: str) -> str:
    """The title of a mesh picture whose devices are coloured by block."""
    return f"devices by block of {array}"


def ids_in_order(axes: Sequence[str], ids: str) -> str:
    """The device ids of a mesh in one line."""
    # With a single axis, the order is obvious.
    order = ""
    if len(axes) > 1:
        order = f" ({axes[-1]} runs fastest)"
    return f"ids in mesh order{order}: {ids}"


def tile_of_devices(length: int, by_host: bool) -> str:
    """Explains that each tile represents many devices."""
    text = f"Each tile is {length:,} neighbouring devices, in the colour of the first."
    if by_host:
        text += " There are too many to arrange them host by host."
    return text


def mesh_alt(mesh: MeshSpec, by: str, ids: str) -> str:
    """Describes a mesh with its hosts, axes and device ids."""
    hosts = plural(len(mesh.processes), "host")
    order = "host by host"
    if by == "mesh":
        order = "by mesh axes"
    return (
        f"Device mesh {mesh}: {plural(mesh.size, 'device')} on {hosts}, {order}."
        f" Axes {joined(mesh.axis_names)}. Device ids in mesh order: {ids}."
    )


def coloured_by_block(layout: Layout, array: str) -> str:
    """Explains the colours of devices."""
    blocks = plural(layout.num_blocks, "block")
    replicas = plural(layout.replicas, "replica")
    return f"Coloured by block of {array}: {blocks}, {replicas}."


def hosts_in_order(hosts: str, each: int) -> str:
    """Lists the hosts of a mesh, with `each` devices per host."""
    return f"hosts in mesh order: {hosts}; {plural(each, 'device')} each"


def tile_of_blocks(count: int) -> str:
    """Explains that each tile represents many blocks."""
    return f"Each tile is {count:,} blocks, in the colour of the first."


def edge_words(layout: Layout, dim: int, logical: str | None) -> tuple[str, ...]:
    """Returns alternative texts for an array's edge along `dim`, longest first.

    The painter adds the mesh axes that split the dimension to the longest text.
    """
    size, count = layout.shape[dim], layout.block_counts[dim]
    name, head = f"dim {dim}", f"dim {dim}: {size:,}"
    if logical is not None:
        name, head = logical, f"{logical} {size:,}"
    if count == 1:
        return f"{head}, not split", head, name
    split = f"{head} = {count:,} × {layout.shard_shape[dim]:,}"
    over = " over"
    if layout.spec is None:
        over = ""
    return f"{split}{over}", split, head, name


def shown_block(dim: int, bounds: str, block: int, count: int) -> str:
    """Names the block of a dimension that a page shows."""
    return f"dimension {dim} {bounds}, block {block + 1} of {count}"


def other_blocks(ids: str) -> str:
    """Lists the devices that hold none of the blocks on the page."""
    return f"devices of other blocks: {ids}"


def layout_lines(layout: Layout, array: str) -> tuple[str, str]:
    """Describes a layout: a line for spec and mesh, one for blocks and replicas."""
    # JAX shardings other than NamedSharding have shard indices but no spec.
    spec = str(layout.spec or "a sharding without a spec")
    blocks = f"{plural(layout.num_blocks, 'block')} of {list(layout.shard_shape)}"
    size = f"{bytes_text(layout.bytes_per_device)} per device"
    size += clause(" in {}", layout.memory_kind)
    replicas = plural(layout.replicas, "replica")
    return f"{array} as {spec} on {layout.mesh}", f"{blocks}, {size}, {replicas}"


def ids_by_block(devices: str, ids: str) -> str:
    """Lists the device ids of a layout, and the number of devices per block."""
    order = "device ids, block by block in row-major order"
    return f"{order}, {devices} per block: {ids}"
