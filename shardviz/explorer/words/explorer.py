"""Text of the Explorer about a session: mesh, arrays, rules, target and model."""

from __future__ import annotations

from shardviz.axis_rules.fit import Fit
from shardviz.axis_rules.requests import Request
from shardviz.base.format import bytes_text, listed, plural

# --- the mesh -------------------------------------------------------------------------


def mesh_count(devices: int, hosts: int) -> str:
    """Formats the number of devices and hosts of a mesh."""
    return f"{plural(devices, 'device')} · {plural(hosts, 'host')}"


#: Axis type -> who decides how arrays are split over axes of this type.
AXIS_TYPES = {
    "Auto": "the compiler chooses",
    "Explicit": "explicit: the type of every array says how it is split",
    "Manual": "manual, as inside shard_map: the code sees one shard",
}
#: Shown if the described target fixes the number of hosts.
HOSTS_OF_HARDWARE = "{} has {}."
#: Explains why the picture of a large mesh numbers devices by position.
TOO_MANY_IDS = (
    "Numbers are positions in the mesh, which has too many device ids for this page."
)


#: Explains why devices are arranged by mesh axes although the user chose positions.
NOT_BY_POSITION = "By mesh axes: {}"

# --- menus ----------------------------------------------------------------------------

#: Tooltips of menu entries.
TITLES = {
    "own": "Your program.",
    "place": "Puts the arrays on their devices.",
    "": "Attached devices if there are enough, else simulated ones.",
    "attached": "The devices of this kernel's JAX.",
    "cpu": "Simulated devices, as many as the mesh has.",
}


#: Tooltip of a running process group: its numbers of processes and devices.
RUNNING_HOSTS = "{}, {} in total."


# --- the target -----------------------------------------------------------------------


#: Explains why the devices of a target have no coordinates.
NO_POSITIONS = (
    "Only described hardware, such as tpu:v5e:4x4, has positions; the target is {}."
)
#: Number of devices drawn by position, and how they are ordered.
COMPILED_ORDER, ID_ORDER = "{:,} · as compiled", "{:,} · in id order"


# --- an empty Explorer ----------------------------------------------------------------

#: What else to open, as a line of code each.
HINTS = (
    ("your params", "sv.explore(params)"),
    ("your step", "sv.explore(step, *args)"),
    ("a TPU slice", 'sv.explore("tpu:v5e:4x4")'),
)


def is_example(name: str) -> str:
    """Reports that the Explorer shows an example, and how to open something else.

    >>> is_example("MLP").partition(", sv.explore(step")[0]
    'MLP is an example. To open something else: sv.explore(params)'
    """
    codes = ", ".join(code for _, code in HINTS)
    return f"{name} is an example. To open something else: {codes}."


# --- arrays ---------------------------------------------------------------------------


def no_rule_names(name: str, near: str | None, dim: int | None = None) -> str:
    """Warns of a logical name that no rule has.

    >>> no_rule_names("mpl", "mlp", 1)
    'No rule names “mpl” (dimension 1). Did you mean “mlp”?'
    """
    sentence = f"No rule names “{name}”"
    if dim is not None:
        sentence += f" (dimension {dim})"
    if near is None:
        return f"{sentence}."
    return f"{sentence}. Did you mean “{near}”?"


#: Warning for an array whose PartitionSpec overrides the spec from the rules.
SPEC_WINS = "This PartitionSpec overrides the rules, which give {}."


def why_split(request: Request, dim: int) -> str:
    """Explains why a dimension is split or not."""
    if request.spec_wins:
        axes = ()
        if request.spec is not None and dim < len(request.spec.dims):
            axes = request.spec.dims[dim]
        state = f"is split over {listed(axes)}" if axes else "is not split"
        return f"Dimension {dim} {state}, as the PartitionSpec requests."
    if request.resolution is not None:
        words = request.resolution.explain_dimension(dim)
        return words[0].upper() + words[1:]
    if request.problem:
        return request.problem
    missing = "logical names" if request.array.logical is None else "rules"
    return f"Dimension {dim} is not split: there are no {missing}."


#: Shown for a model leaf without a spec or rules.
UNKNOWN_SPLIT = "Its sharding is unknown."


def requested(arrays: int, split: int, broken: int) -> str:
    """Formats the numbers of all arrays, split arrays, and arrays with errors."""
    words = f"{plural(arrays, 'array')}, {split} split"
    if broken:
        words += f", {broken} cannot be laid out"
    return words


def requested_bytes(size: int, missing: int) -> str:
    """Formats the bytes of all arrays on the fullest device."""
    words = f"{bytes_text(size)} per device"
    if missing:
        words += f", {missing} not counted"
    return words


#: Explains why a saved state opens without its function.
LOST_FUNCTION = (
    "A saved state holds arrays but no functions, so “{}” was not restored; only its arrays"
    " are shown. Open the program with sv.explore(program), or choose one here."
)


# --- a model --------------------------------------------------------------------------


def leaf_count(leaves: int, elements: str, of_parameters: bool) -> str:
    """Formats the number of a model's arrays, and of its elements or parameters."""
    noun = "parameters" if of_parameters else "elements"
    return f"{plural(leaves, 'array')} · {elements} {noun}"


def model_memory(fit: Fit) -> str:
    """Formats a model's bytes on the fullest device, and whether they fit."""
    if fit.capacity is None:
        # Without a target there is no memory to compare with.
        return f"{bytes_text(fit.needed)} per device{fit.uncounted}"
    return str(fit)


def model_copies(size: int) -> str:
    """Formats the bytes of copies on each device."""
    return f"{bytes_text(size)} of copies"


def bytes_in(size: int, memory_kind: str) -> str:
    """Formats the bytes of a leaf that is not in the device's default memory."""
    return f"{bytes_text(size)} in {memory_kind}"


# --- failures -------------------------------------------------------------------------


#: Error message for a panel or an intent that failed.
FAILED = "“{}” failed, so the page still shows the previous state. {}"
#: Error message if the page comes from another version of shardviz.
UNKNOWN_INTENT = "The page asked for {}, which this version of shardviz does not know."
