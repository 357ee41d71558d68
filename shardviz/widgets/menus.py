"""The menus: known programs, targets, and meshes that fit a target.

Attached devices are looked up only when they are used, because that starts a backend.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from shardviz.core.errors import TargetError
from shardviz.core.format import plural, shown
from shardviz.core.hardware.topology import Topology, is_described
from shardviz.core.layout.array_spec import format_names
from shardviz.core.layout.mesh import MeshSpec, make_mesh
from shardviz.core.program.program import Program, only_described
from shardviz.gallery import programs, puzzles


def known_names() -> tuple[str, ...]:
    """The names of all programs in the menu.

    >>> known_names()[0], "fsdp, gradient" in known_names()
    ('MLP', True)
    """
    return (*programs.names(), *puzzles.names())


def is_known(name: Any) -> bool:
    """Whether the menu has a program of that name.

    >>> is_known("MLP"), is_known("two orders of devices"), is_known("")
    (True, True, False)
    """
    return name in known_names()


def known_program(name: str, mesh: MeshSpec | None = None) -> Program:
    """The program of that name.

    Args:
        name: in the menu.
        mesh: replaces the mesh of a gallery program where it has all of its axes. A puzzle keeps
            its own mesh, because its answer depends on it.

    Raises:
        ShardvizError: if there is none.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> here = make_mesh(data=2, model=2)
    >>> known_program("MLP", here).mesh.size, known_program("fsdp, gradient", here).mesh.size
    (4, 8)
    """
    if name in puzzles.names():
        return puzzles.get(name)
    program = programs.get(name)
    fits = mesh is not None and set(program.mesh.axis_names) <= set(mesh.axis_names)
    return program.replace(mesh=mesh) if fits else program


def known_sources(name: str) -> tuple[str, ...]:
    """The source of every function that a program of the menu needs, its own last.

    >>> len(known_sources("MLP, gradient")), len(known_sources("fsdp, gradient"))
    (2, 2)
    """
    return (puzzles if name in puzzles.names() else programs).sources(name)


def program_options() -> list[dict[str, str]]:
    """The menu's entries, in two groups.

    >>> sorted({option["group"] for option in program_options()})
    ['Programs', 'Puzzles']
    """
    return [
        {"value": name, "label": name, "title": registry.describe(name), "group": group}
        for group, registry in (("Programs", programs), ("Puzzles", puzzles))
        for name in registry.names()
    ]


_SIMULATED = re.compile(r"cpu(?:\s*:\s*([0-9]{1,7}))?", re.IGNORECASE)
MOST_SHAPES, MOST_TRIED = 400, 40  # of meshes that could fill a target
_PLAIN = ("", "attached", "cpu")
_DESCRIBED = ("tpu", "gpu")
EXAMPLES = (
    "tpu:v5e:4x4",
    "tpu:v5e:4x4*2",
    "tpu:v6e:16x16",
    "tpu:v5p:8x8x16",
    "tpu:7x:4x4x4",
    "gpu:h100:2x8",
    "gpu:b200:8x8",
)
HOW = "Write 'attached', 'cpu', 'cpu:64', 'tpu:v5e:4x4' or 'gpu:h100:2x8', or '' for automatic"


def checked_target(text: str) -> str:
    """A typed target in its canonical form.

    Raises:
        TargetError: if there is no such target.

    >>> checked_target(" CPU : 64"), checked_target("TPU:v5e:4x4"), checked_target("")
    ('cpu:64', 'tpu:v5e:4x4', '')
    """
    word = text.strip().lower()
    if word in (*_PLAIN, *_DESCRIBED):
        return word
    if found := _SIMULATED.fullmatch(word):
        if int(found[1]) < 1:
            raise TargetError(f"A target has at least 1 device; got {shown(text)}. {HOW}.")
        return f"cpu:{int(found[1])}"
    if word.split(":")[0].strip() in _DESCRIBED or is_described(word):
        return str(Topology.parse(word))
    raise TargetError(f"No target is called {shown(text)}. {HOW}.")


def is_simulated(target: str) -> bool:
    """Whether a target is simulated CPU devices, or automatic, which may choose them.

    >>> is_simulated(""), is_simulated("cpu:8"), is_simulated("tpu:v5e:4x4")
    (True, True, False)
    """
    return target == "" or _SIMULATED.fullmatch(target) is not None


def topology_of(target: str) -> Topology | None:
    """The described hardware that a checked target names; None for any other target.

    >>> topology_of("tpu:v5e:4x4").size, topology_of("cpu:8")
    (16, None)
    """
    return _topology(target) if target.startswith(("tpu:", "gpu:")) else None


@lru_cache(maxsize=64)
def _topology(target: str) -> Topology:
    return Topology.parse(target)


def why_not_run(target: str) -> str:
    """Why nothing can run on a checked target; `""` where programs can.

    >>> why_not_run("tpu:v5e:4x4")[:43], why_not_run("cpu:8")
    ("'tpu:v5e:4x4' is described and not attached", '')
    """
    return "" if topology_of(target) is None else only_described(target)


def target_title(target: str) -> str:
    """The title of a checked target.

    >>> target_title("tpu:v5p:8x8x16"), target_title("gpu:h100:2x8"), target_title("cpu:8")
    ('TPU v5p 8×8×16', 'NVIDIA H100 SXM 2×8', 'simulated CPU × 8')
    """
    topology = topology_of(target)
    if topology is not None:
        return topology.title
    found = _SIMULATED.fullmatch(target)
    if found:
        return f"simulated CPU × {int(found[1]):,}" if found[1] else "simulated CPU"
    return {"": "automatic", "attached": "attached devices"}.get(target, target.upper())


def needed_size(mesh: MeshSpec, target: str) -> int | None:
    """The number of devices that a mesh must have for a target; None where the mesh fits.

    >>> needed_size(make_mesh(data=8), "tpu:v5e:4x4"), needed_size(make_mesh(data=8), "cpu:64")
    (16, None)
    """
    topology = topology_of(target)
    if topology is not None:
        return None if topology.size == mesh.size else topology.size
    found = _SIMULATED.fullmatch(target)
    if found and found[1] and int(found[1]) < mesh.size:
        return int(found[1])
    return None


def fitting_mesh(
    mesh: MeshSpec, target: str, accepts: Callable[[MeshSpec], bool] | None = None
) -> MeshSpec | None:
    """The mesh with its axes resized to fill the target; None where the mesh fits.

    The last axes keep their sizes as far as these divide, and the first axis gets the rest. Where
    that is not accepted it is the nearest mesh that is; None where there is none.

    Args:
        mesh: the mesh.
        target: the target, checked.
        accepts: whether a mesh will do: its axes divide the arrays, and the hardware can hold it.

    >>> fitting_mesh(make_mesh(data=4, model=2), "tpu:v5e:4x4")
    MeshSpec('data=8, model=2')
    >>> few = lambda mesh: mesh.shape["data"] <= 4
    >>> fitting_mesh(make_mesh(data=4, model=2), "tpu:v5e:4x4", few)
    MeshSpec('data=4, model=4')
    """
    count = needed_size(mesh, target)
    if count is None:
        return None
    topology = topology_of(target)
    hosts = topology.hosts if topology is not None else math.gcd(len(mesh.processes), count)
    for sizes in _sizes(mesh.axis_sizes, count):
        shape = dict(zip(mesh.axis_names, sizes, strict=True))
        fitting = make_mesh(shape, axis_types=mesh.axis_types, processes=hosts)
        if accepts is None or accepts(fitting):
            return fitting
    return None


def _sizes(old: tuple[int, ...], count: int) -> Iterator[tuple[int, ...]]:
    """Sizes of as many axes that multiply to a count: first the plain choice, then the nearest."""
    left, kept = count, []
    for size in reversed(old[1:]):
        kept.append(math.gcd(left, size))
        left //= kept[-1]
    first = (left, *reversed(kept))
    yield first
    found = {tuple(sizes) for sizes in itertools.islice(_factors(len(old), count), MOST_SHAPES)}
    found.discard(first)

    def change(sizes: tuple[int, ...]) -> tuple[float, float, int]:
        steps = [abs(math.log2(new / was)) for new, was in zip(sizes, old, strict=True)]
        return round(sum(steps), 6), max(steps), -sizes[0]

    yield from sorted(found, key=change)[:MOST_TRIED]


def _factors(axes: int, count: int) -> Iterator[list[int]]:
    if axes == 1:
        yield [count]
        return
    for size in range(1, count + 1):
        if count % size == 0:
            for rest in _factors(axes - 1, count // size):
                yield [size, *rest]


@lru_cache(maxsize=1)
def described_options() -> list[dict[str, str]]:
    """Examples of described targets for the menu."""
    options = []
    for text in EXAMPLES:
        topology = _topology(text)
        label = f"{target_title(text)} · {topology.size:,}"
        options.append(
            {"value": text, "label": label, "title": topology.words(), "group": "Described"}
        )
    return options


@lru_cache(maxsize=1)
def local_options() -> list[dict[str, str]]:
    """The targets on this machine. The page adds to `cpu` how many devices that are."""
    options = (
        ("", "automatic", "Attached devices if enough, else simulated."),
        ("attached", "attached devices", "What this kernel's JAX has."),
        ("cpu", "simulated CPU", "As many devices as the mesh has, simulated."),
    )
    here = {"group": "On this machine"}
    return [{"value": v, "label": label, "title": title, **here} for v, label, title in options]


def target_view(
    mesh: MeshSpec,
    target: str,
    error: str = "",
    accepts: Callable[[MeshSpec], bool] | None = None,
) -> dict[str, Any]:
    """The chosen target, and notes on it; the options are in the menus.

    Args:
        mesh: of the session.
        target: the chosen target, checked.
        error: why the text that was typed last is not a target.
        accepts: whether a mesh may be offered.

    >>> view = target_view(make_mesh(data=4, model=2), "tpu:v5e:4x4")
    >>> view["note"], view["offer"]
    ('TPU v5e 4×4 has 16 devices and the mesh has 8.', 'Take data=8, model=2')
    >>> target_view(make_mesh(data=4, model=2), "cpu:8")
    {'value': 'cpu:8', 'label': 'simulated CPU × 8'}
    """
    view = {"value": target}
    if target not in (*_PLAIN, *EXAMPLES):
        view["label"] = target_title(target)
    if error:
        view["error"] = error
    if reason := why_not_run(target):
        view["noRun"] = reason
    count, fitting = needed_size(mesh, target), fitting_mesh(mesh, target, accepts)
    if count is not None:
        has = f"{target_title(target)} has {plural(count, 'device')}"
        view["note"] = f"{has} and the mesh has {mesh.size:,}."
        if fitting is not None:
            axes = (f"{format_names((n,))}={s}" for n, s in fitting.shape.items())
            view["offer"] = f"Take {', '.join(axes)}"
    topology = topology_of(target)
    return view if topology is None else {**view, "words": topology.words()}
