"""Sentences of the Explorer about a session: mesh, arrays, rules, target and model."""

from __future__ import annotations

from shardviz.axis_rules.fit import Fit
from shardviz.axis_rules.requests import Request
from shardviz.base.format import bytes_text, listed, plural

# --- the mesh -------------------------------------------------------------------------


def mesh_count(devices: int, hosts: int) -> str:
    """The size of a mesh."""
    return f"{plural(devices, 'device')} · {plural(hosts, 'host')}"


#: Who decides how arrays are split over a mesh axis, by the type of the axis.
AXIS_TYPES = {
    "Auto": "the compiler chooses",
    "Explicit": "explicit: the type of every array says how it is split",
    "Manual": "manual, as inside shard_map: the code sees one shard",
}
#: Why the number of hosts of a described target cannot be chosen.
HOSTS_OF_HARDWARE = "{} has {}."
#: Why the picture of a large mesh numbers its devices by position.
TOO_MANY_IDS = (
    "Numbers are positions in the mesh: it has too many device ids for this page."
)


#: Why devices are arranged by mesh axes although the user chose positions.
NOT_BY_POSITION = "By mesh axes: {}"

# --- menus ----------------------------------------------------------------------------

#: Tooltips of the entries of menus.
TITLES = {
    "own": "Your program.",
    "place": "Puts the arrays on their devices.",
    "": "Attached devices if enough, else simulated.",
    "attached": "What this kernel's JAX has.",
    "cpu": "As many devices as the mesh has, simulated.",
}


#: The number of processes on several hosts, and their devices.
RUNNING_HOSTS = "{}, {} in all."


# --- the target -----------------------------------------------------------------------


#: Why the devices of a target have no coordinates.
NO_POSITIONS = (
    "Only described hardware, such as tpu:v5e:4x4, has positions; the target is {}."
)
#: The number of devices drawn by position, and their order.
COMPILED_ORDER, ID_ORDER = "{:,} · as compiled", "{:,} · in id order"


# --- arrays ---------------------------------------------------------------------------


def no_rule_names(name: str, near: str | None, dim: int | None = None) -> str:
    """A logical name that no rule has.

    >>> no_rule_names("mpl", "mlp", 1)
    'No rule names “mpl” (dimension 1). Did you mean “mlp”?'
    """
    sentence = f"No rule names “{name}”"
    if dim is not None:
        sentence += f" (dimension {dim})"
    if near is None:
        return f"{sentence}."
    return f"{sentence}. Did you mean “{near}”?"


#: An array whose PartitionSpec overrides the spec from the rules.
SPEC_WINS = "This PartitionSpec wins over the rules, which say {}."


def why_split(request: Request, dim: int) -> str:
    """Why a dimension is split or not."""
    if request.spec_wins:
        axes = ()
        if request.spec is not None and dim < len(request.spec.dims):
            axes = request.spec.dims[dim]
        state = f"is split over {listed(axes)}" if axes else "is not split"
        return f"Dimension {dim} {state}, as the PartitionSpec says."
    if request.resolution is not None:
        words = request.resolution.explain_dimension(dim)
        return words[0].upper() + words[1:]
    if request.problem:
        return request.problem
    missing = "logical names" if request.array.logical is None else "rules"
    return f"Dimension {dim} is not split: there are no {missing}."


#: A leaf of a model without a spec or a rule.
UNKNOWN_SPLIT = "Nothing says how it is split."


def requested(arrays: int, split: int, broken: int) -> str:
    """The requested stage: the number of arrays, of split ones, and of broken ones."""
    words = f"{plural(arrays, 'array')}, {split} split"
    if broken:
        words += f", {broken} cannot be laid out"
    return words


def requested_bytes(size: int, missing: int) -> str:
    """The bytes of the arrays on the fullest device."""
    words = f"{bytes_text(size)} per device"
    if missing:
        words += f", {missing} not counted"
    return words


#: Why a saved state opens without its function.
LOST_FUNCTION = (
    "A saved state holds arrays and no functions: “{}” was not restored, and only its"
    " arrays are shown. Open it again with sv.explore(program), or choose a program"
    " here."
)


# --- a model --------------------------------------------------------------------------


def leaf_count(leaves: int, kinds: int, elements: str) -> str:
    """The size of a model."""
    words = plural(leaves, "array")
    if kinds < leaves:
        words += f", {kinds:,} distinct shapes and specs"
    return f"{words} · {elements} elements"


def model_memory(fit: Fit) -> str:
    """The bytes of a model on the fullest device, and whether they fit its memory."""
    if fit.capacity is None:
        # Without a target there is no memory to compare with.
        return f"{bytes_text(fit.needed)} per device{fit.uncounted}"
    return str(fit)


def model_waste(size: int) -> str:
    """The bytes that replication costs on a device."""
    return f"{bytes_text(size)} wasted by replication"


def bytes_in(size: int, memory_kind: str) -> str:
    """The bytes of a leaf that is not in the default memory of a device."""
    return f"{bytes_text(size)} in {memory_kind}"


# --- failures -------------------------------------------------------------------------


#: A failure of a panel or an intent.
FAILED = "“{}” failed, and what was shown before stays: {}"
#: A message of a page that is newer or older than this kernel's shardviz.
UNKNOWN_INTENT = "The page asked for {}, which this version of shardviz does not know."
