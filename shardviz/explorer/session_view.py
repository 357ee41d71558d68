"""What the page shows of a Document, as plain data: mesh bar, menus, arrays, program.

Without jax. What is empty, and what the page can derive from the rest, is not sent;
`static/view_data.js` puts it back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardviz.axis_rules.dialects import DIALECTS
from shardviz.axis_rules.group_bytes import on_fullest_device
from shardviz.axis_rules.requests import Request
from shardviz.base.format import bytes_text, plural
from shardviz.base.layout import Layout, Misfit
from shardviz.base.mesh import AXIS_TYPES
from shardviz.base.partition_spec import Spec
from shardviz.explorer.document import DEVICE_PUT, ArrayFields, Document
from shardviz.explorer.edits import PLACED
from shardviz.explorer.targets import DevicePlacement, described_options, local_options
from shardviz.explorer.words import explorer as wording
from shardviz.gallery import arrays as gallery_arrays
from shardviz.gallery import meshes as gallery_meshes
from shardviz.gallery import programs as gallery_programs
from shardviz.gallery import puzzles
from shardviz.gallery import rules as gallery_rules
from shardviz.gallery import scenarios as gallery_scenarios


def filled(**fields: Any) -> dict[str, Any]:
    """The fields that are not empty."""
    return {name: value for name, value in fields.items() if value}


# --- the mesh bar ---------------------------------------------------------------------


def mesh_view(document: Document, placement: DevicePlacement | None) -> dict[str, Any]:
    """The mesh bar: fields, axes, and the number of devices."""
    mesh, errors = document.mesh, document.errors
    hosts = {"hosts": document.text["hosts"]}
    if placement is not None:
        mesh = placement.mesh
        count = plural(len(mesh.processes), "host")
        owner = wording.HOSTS_OF_HARDWARE.format(placement.topology.title, count)
        hosts = {"hosts": str(len(mesh.processes)), "hostsOf": owner}
    axes = [[name, size] for name, size in mesh.shape.items()]
    types = mesh.axis_types[0] if mesh.axis_types else AXIS_TYPES[0]
    if len(set(mesh.axis_types)) > 1:
        types = "mixed"
        for axis, kind in zip(axes, mesh.axis_types, strict=True):
            axis.append(kind)
    return {
        "text": document.text["mesh"],
        **filled(error=errors.get("mesh"), hostsError=errors.get("hosts")),
        **hosts,
        "types": types,
        "axes": axes,
        "count": wording.mesh_count(mesh.size, len(mesh.processes)),
    }


# --- menus ----------------------------------------------------------------------------


def menus_view(document: Document) -> dict[str, Any]:
    """The options of all menus: sent once, and not changed by an edit."""
    programs = []
    if document.own is not None:
        programs.append(_option("", document.own.name, wording.TITLES["own"]))
    for group, registry in (("Programs", gallery_programs), ("Puzzles", puzzles)):
        for name in registry.names():
            option = _option(name, name, registry.describe(name))
            programs.append({**option, "group": group})
    programs.append(_option(DEVICE_PUT, DEVICE_PUT, wording.TITLES["place"]))
    by_name = [dialect for dialect in DIALECTS if not dialect.by_path]
    dialects = [{"value": d.name, "label": d.library} for d in by_name]
    presets = []
    kinds: tuple[tuple[str, str, Any], ...] = (
        ("Scenarios", "scenario", gallery_scenarios),
        ("Meshes", "mesh", gallery_meshes),
        ("Rule tables", "rules", gallery_rules),
        ("Arrays", "arrays", gallery_arrays),
    )
    for title, kind, registry in kinds:
        options = []
        for name in registry.names():
            options.append(_option(f"{kind}:{name}", name, registry.describe(name)))
        presets.append({"group": title, "options": options})
    return {
        "axisTypes": [
            _option(kind, kind, wording.AXIS_TYPES[kind]) for kind in AXIS_TYPES
        ],
        "presets": presets,
        "dialects": dialects,
        "programs": programs,
        "here": local_options(),
        "targets": described_options(),
    }


def _option(value: str, label: str, title: str) -> dict[str, str]:
    return {"value": value, "label": label, "title": title}


# --- arrays ---------------------------------------------------------------------------


def array_view(fields: ArrayFields) -> dict[str, Any]:
    """What was typed about an array, and what that says without rules and mesh."""
    array = fields.good
    # JSON has no UNCONSTRAINED.
    names = [name and str(name) for name in array.logical or ()]
    return {
        "name": array.name,
        "type": array.short.partition("[")[0],
        "shape": list(array.shape),
        "bytes": bytes_text(array.bytes),
        "texts": dict(fields.text),
        **filled(names=names, errors=dict(fields.errors)),
    }


def layout_numbers(layout: Layout) -> dict[str, Any]:
    """What the page says about the blocks of an array."""
    return {
        "counts": list(layout.block_counts),
        "shard": list(layout.shard_shape),
        "replicas": layout.replicas,
        "shardBytes": bytes_text(layout.bytes_per_device),
    }


def layout_view(request: Request, picture: Mapping[str, Any]) -> dict[str, Any]:
    """How an array is split, and the reasons, one for each dimension."""
    layout, spec = request.layout, request.spec
    rank = request.array.rank
    dims: list[dict[str, Any]] = []
    for dim, axes in enumerate((request.spec or Spec()).padded(rank)[:rank]):
        dims.append({"why": wording.why_split(request, dim), **filled(axes=list(axes))})
    view = {
        "spec": str(spec or ""),
        "dims": dims,
        **filled(
            typedSpec=request.array.spec is not None,
            noRules=request.resolution is None and request.array.spec is None,
            problem=request.problem,
            warnings=_warnings(request),
        ),
        **picture,
    }
    if (mend := _dimension_to_mend(request)) is not None:
        view["mend"] = mend
    if layout is not None:
        view.update(layout_numbers(layout))
        view["strides"] = list(layout.group_strides or ())
    return view


def _dimension_to_mend(request: Request) -> int | None:
    """The dimension that other rules would split: one that cannot be split as it is to be,
    else the longest of those that are not split."""
    if request.spec_wins or not request.array.logical:
        return None
    sizes, spec = request.array.shape, request.spec or Spec()
    if request.problem is None:
        dims = enumerate(spec.padded(len(sizes)))
        whole = [dim for dim, axes in dims if not axes]
        return max(whole, key=lambda dim: sizes[dim], default=None)
    mesh = request.resolution.mesh if request.resolution is not None else None
    if mesh is not None:
        for dim, axes in enumerate(spec.dims[: len(sizes)]):
            if not set(axes) <= set(mesh.shape) or Misfit.find(sizes[dim], axes, mesh):
                return dim
    return 0


def _warnings(request: Request) -> list[str]:
    """What is likely to be a mistake, though the array can be laid out."""
    found = request.resolution
    if found is None:
        return []
    if request.spec_wins:
        return [wording.SPEC_WINS.format(found.spec)]
    return [wording.no_rule_names(name, near) for _, name, near in found.unmatched()]


def _layout_views(
    requests: Sequence[Request], pictures: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The layouts; of an array that is split as one before it, the number of that one.

    The layers of a model are split alike, and there may be hundreds.
    """
    views: list[dict[str, Any]] = []
    first: dict[Any, int] = {}
    for number, (request, picture) in enumerate(zip(requests, pictures, strict=True)):
        array = request.array
        drawn = id(picture.get("picture"))
        key = (array.shape, array.dtype, array.logical, array.spec, drawn)
        same = first.setdefault(key, number)
        if same != number and request.layout is not None:
            views.append({"same": same})
        else:
            views.append(layout_view(request, picture))
    return views


# --- program and session --------------------------------------------------------------


def program_view(document: Document) -> dict[str, Any]:
    """The program bar: what can be chosen, and the requested stage."""
    requests = document.program.requests
    layouts = [request.layout for request in requests if request.layout is not None]
    split = sum(layout.num_blocks > 1 for layout in layouts)
    broken = len(document.program.problems)
    lost = ""
    if document.missing_function:
        lost = wording.LOST_FUNCTION.format(document.missing_function)
    size, missing = on_fullest_device(requests), len(requests) - len(layouts)
    return {
        "value": document.entry,
        **filled(lost=lost, broken=broken > 0),
        "requested": wording.requested(len(requests), split, broken),
        "requestedBytes": wording.requested_bytes(size, missing),
    }


def array_trait(number: int) -> str:
    """The name of the trait that holds what was typed about an array."""
    return f"array_{number}"


def layout_trait(number: int) -> str:
    """The name of the trait that holds the layout and the picture of an array."""
    return f"layout_{number}"


def session_view(
    document: Document,
    pictures: Sequence[Mapping[str, Any]] = (),
    placement: DevicePlacement | None = None,
) -> dict[str, dict[str, Any]]:
    """The traits that show a Document, by name, each sent only where it changed."""
    requests = document.program.requests
    views: dict[str, dict[str, Any]] = {
        "mesh": mesh_view(document, placement),
        "rules": {
            "text": document.text["rules"],
            **filled(error=document.errors.get("rules")),
            "dialect": document.program.dialect.value,
        },
        "program": program_view(document),
        "view": _selection_view(document),
    }
    for number, fields in enumerate(document.fields):
        views[array_trait(number)] = array_view(fields)
    layouts = _layout_views(requests, pictures or [{} for _ in requests])
    for number, layout in enumerate(layouts):
        views[layout_trait(number)] = layout
    return views


def _selection_view(document: Document) -> dict[str, Any]:
    notes = [e for name, e in document.errors.items() if name not in PLACED]
    return {
        "count": len(document.fields),
        "selected": document.selected,
        **filled(notes=notes, opens=document.view),
    }
