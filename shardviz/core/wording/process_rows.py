"""What every process loads of an array: what to heed, and the code of a loader."""

from __future__ import annotations

from shardviz.core.format import bytes_text, ids_text, plural
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.transfer.process_rows import LoaderNote, ProcessRows

MOST_NAMED = 3  # groups of processes that a sentence names


def note(fact: LoaderNote) -> str:
    """One thing that a loader has to heed."""
    rows = fact.rows
    if fact.code == "equal parts":
        return _equal_parts(rows)
    if fact.code == "repeats":
        return _repeats(rows)
    if fact.code == "gaps":
        apart = sum(not part.contiguous for part in rows.parts)
        return (
            f"The parts of {apart:,} of {plural(len(rows.parts), 'process', 'processes')}"
            " are not one contiguous block: their ranges one after the other, ascending."
        )
    return {
        "one process": f"Process {rows.parts[0].process} has all devices and yields the"
        " whole array. For several processes, give the mesh with processes=, as in"
        " sv.mesh(data=4, processes=2).",
        "not read": "The devices of a process hold no grid of blocks: it yields some"
        " elements that none of its devices reads.",
        "another order": "In another order of the mesh's devices, .reordered, every part"
        " is one block that its devices read in full.",
    }[fact.code]


def _equal_parts(rows: ProcessRows) -> str:
    if len(rows.groups) == 1:
        count = plural(len(rows.parts), "process", "processes")
        return f"All {count} must yield the same array: shuffle with one seed."
    shared = [group for group in rows.groups if len(group) > 1]
    words = f"Processes {ids_text(shared[0])} must yield the same array"
    for group in shared[1:MOST_NAMED]:
        words += f"; so must {ids_text(group)}"
    if len(shared) > MOST_NAMED:
        words += f"; so must {plural(len(shared) - MOST_NAMED, 'more group')}"
    return f"{words}."


def _repeats(rows: ProcessRows) -> str:
    once = bytes_text(rows.bytes_loaded - rows.bytes_repeated)
    if not rows.layout.rank:
        return f"Every process loads the number, {once}."
    count = rows.layout.shape[0]
    loaded = sum(part.shape[0] for part in rows.parts)
    if rows.bytes_repeated:
        return (
            f"{loaded:,} rows are loaded for the {count:,} there are:"
            f" {bytes_text(rows.bytes_loaded)} in all for {once}. What several processes"
            " load must be equal."
        )
    if loaded > count:
        return "No element is loaded twice; the processes of a row yield other columns."
    return "No row is loaded twice."


def loader(rows: ProcessRows) -> str:
    """The lines of a loader, the same in every process."""
    layout = rows.layout
    spec = Spec(() if layout.spec is None else layout.spec.dims)
    mesh, own = _mesh_code(layout.mesh), _loader_code(rows)
    return _CODE.format(mesh=mesh, spec=spec, shape=layout.shape, loader=own)


_CODE = """\
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

# The same in every process, after jax.distributed.initialize().
{mesh}
sharding = NamedSharding(mesh, {spec})
shape = {shape}


{loader}
batch = jax.make_array_from_process_local_data(sharding, local, shape)
"""
_NEEDED = """\
def needed(dim):
    # The indices along a dimension that devices of this process hold, ascending.
    held = sharding.addressable_devices_indices_map(shape).values()
    ranges = sorted({index[dim].indices(shape[dim])[:2] for index in held})
    return np.concatenate([np.arange(*some) for some in ranges])


"""


def _mesh_code(mesh: MeshSpec) -> str:
    in_order = "sorted(jax.devices(), key=lambda d: (d.process_index, d.id))"
    if not mesh.ids_are_positions:
        ids = mesh.device_ids.reshape(-1).tolist()
        chosen = f"by_id = {{d.id: d for d in jax.devices()}}\ndevices = [by_id[i] for i in {ids}]"
    elif mesh.even_hosts:
        chosen = f"devices = {in_order}"
    else:
        processes = mesh.process_indices.reshape(-1).tolist()
        chosen = (
            f"processes = {processes}  # of each device, in the order of the mesh\n"
            f"ordered = {in_order}\n"
            "own = {p: iter([d for d in ordered if d.process_index == p]) for p in set(processes)}"
            "\ndevices = [next(own[p]) for p in processes]"
        )
    sizes, names = mesh.axis_sizes, mesh.axis_names
    return f"{chosen}\nmesh = Mesh(np.array(devices).reshape({sizes}), {names!r})"


def _loader_code(rows: ProcessRows) -> str:
    """The functions of the loader, and the line that makes its local array."""
    layout, shape = rows.layout, rows.layout.shape
    if not layout.rank:
        return f"local = np.zeros((), {layout.dtype!r})  # to replace: the same in every process"
    which, columns, helper = f"np.arange({shape[0]})", "", ""
    for dim, size in enumerate(shape):
        if all(part.shape[dim] == size for part in rows.parts):
            continue
        helper = _NEEDED
        if dim == 0:
            which = "needed(0)"
        else:
            columns += f"[{':, ' * dim}needed({dim})]"
    more = "".join(f", {n}" for n in shape[1:])
    return f"""\
{helper}def load(rows):
    # To replace: these rows of the batch, in this order, with all their elements.
    return np.zeros((len(rows){more or ","}), {layout.dtype!r})


local = load({which}){columns}"""


SENTENCES = {LoaderNote: note}
EXPLANATIONS = {ProcessRows: loader}
