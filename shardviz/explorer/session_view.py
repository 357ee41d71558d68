"""A Document as plain data for the page: mesh bar, menus, arrays, program.

Fields that are empty, or that the page can derive from other fields, are not sent;
`static/view_data.js` adds them again. This module does not use jax.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from shardviz.axis_rules.dialects import DIALECTS
from shardviz.axis_rules.group_bytes import on_fullest_device
from shardviz.axis_rules.requests import Request
from shardviz.base.format import bytes_text, fold, plural
from shardviz.base.layout import Layout, Misfit
from shardviz.base.mesh import AXIS_TYPES
from shardviz.base.partition_spec import Spec
from shardviz.base.typing import JsonDict
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


def filled(**fields: Any) -> JsonDict:
    """Returns only the fields that are not empty."""
    return {name: value for name, value in fields.items() if value}


# --- the mesh bar ---------------------------------------------------------------------


def mesh_view(document: Document, placement: DevicePlacement | None) -> JsonDict:
    """Returns data for the mesh bar: fields, axes, and number of devices."""
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


def menus_view(document: Document) -> JsonDict:
    """Returns the options of all menus; sent once, because edits don't change them."""
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
    kinds = (
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


def array_view(fields: ArrayFields) -> JsonDict:
    """Returns an array's field texts, dtype, shape and bytes."""
    array = fields.good
    # UNCONSTRAINED names are sent as text, because JSON has no such value.
    names = [name and str(name) for name in array.logical or ()]
    return {
        "name": array.name,
        "type": array.short.partition("[")[0],
        "shape": list(array.shape),
        "bytes": bytes_text(array.bytes),
        "texts": dict(fields.text),
        **filled(names=names, errors=dict(fields.errors)),
    }


def layout_numbers(layout: Layout) -> JsonDict:
    """Returns the block counts, shard shape, replicas and shard bytes of a layout."""
    return {
        "counts": list(layout.block_counts),
        "shard": list(layout.shard_shape),
        "replicas": layout.replicas,
        "shardBytes": bytes_text(layout.bytes_per_device),
    }


def layout_view(request: Request, picture: JsonDict) -> JsonDict:
    """Returns how an array is split, with the reason for each dimension."""
    layout, spec = request.layout, request.spec
    rank = request.array.rank
    dims: list[JsonDict] = []
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
    """Returns the dimension for which the page suggests rule changes, or None.

    This is the dimension that cannot be split as specified. If all can be, it is the
    longest dimension that is not split.
    """
    if request.spec_wins or not request.array.logical:
        return None
    sizes, spec = request.array.shape, request.spec or Spec()
    if request.problem is None:
        dims = enumerate(spec.padded(len(sizes)))
        unsplit = [dim for dim, axes in dims if not axes]
        return max(unsplit, key=lambda dim: sizes[dim], default=None)
    mesh = request.resolution.mesh if request.resolution is not None else None
    if mesh is not None:
        for dim, axes in enumerate(spec.dims[: len(sizes)]):
            if not set(axes) <= set(mesh.shape) or Misfit.find(sizes[dim], axes, mesh):
                return dim
    return 0


def _warnings(request: Request) -> list[str]:
    """Returns sentences about likely mistakes in an array's names and spec."""
    resolution = request.resolution
    if resolution is None:
        return []
    if request.spec_wins:
        return [wording.SPEC_WINS.format(resolution.spec)]
    return [
        wording.no_rule_names(name, near) for _, name, near in resolution.unmatched()
    ]


def _layout_views(
    requests: Sequence[Request], pictures: Sequence[JsonDict]
) -> list[JsonDict]:
    """Returns each array's layout, or the index of an earlier array with that layout.

    A model may have hundreds of layers with equal layouts.
    """
    views: list[JsonDict] = []
    first: dict[Hashable, int] = {}
    for number, (request, picture) in enumerate(zip(requests, pictures, strict=True)):
        array = request.array
        drawn = id(picture.get("picture"))
        key = (array.shape, array.dtype, array.logical, array.spec, drawn)
        first_number = first.setdefault(key, number)
        if first_number != number and request.layout is not None:
            views.append({"same": first_number})
        else:
            views.append(layout_view(request, picture))
    return views


# --- program and session --------------------------------------------------------------


def program_view(document: Document) -> JsonDict:
    """Returns data for the program bar: selected program and requested stage."""
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
    """Returns the name of the trait that has an array's fields."""
    return f"array_{number}"


def layout_trait(number: int) -> str:
    """Returns the name of the trait that has an array's layout and picture."""
    return f"layout_{number}"


def session_view(
    document: Document,
    pictures: Sequence[JsonDict] = (),
    placement: DevicePlacement | None = None,
) -> dict[str, JsonDict]:
    """Returns trait name -> value for the traits that show a Document."""
    requests = document.program.requests
    views: dict[str, JsonDict] = {
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


def _selection_view(document: Document) -> JsonDict:
    notes = [e for name, e in document.errors.items() if name not in PLACED]
    arrays, beside = document.arrays, 0
    if document.model is not None:
        opened = sum(array.name in document.model.names for array in arrays)
        beside = len(document.model.arrays) - opened
    folds = []
    for layers in fold(range(len(arrays)), lambda n: arrays[n].name, _kind(document)):
        if layers.in_layers is not None:
            folds.append([*layers.in_layers, list(layers.items)])
    hints = wording.HINTS if document.entry == gallery_programs.DEFAULT else ()
    return {
        "count": len(document.fields),
        "selected": document.selected,
        **filled(notes=notes, opens=document.view, hints=hints),
        **filled(folds=folds, beside=beside),
    }


def _kind(document: Document) -> Callable[[int], Hashable]:
    """Returns the key by which arrays are alike; arrays with errors are like no other."""

    def kind(number: int) -> Hashable:
        a, errors = document.arrays[number], document.fields[number].errors
        unlike = number if errors else -1
        return a.logical, a.shape, a.dtype, a.spec, a.memory_kind, unlike

    return kind
