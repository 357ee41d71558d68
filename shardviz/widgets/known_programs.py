"""The programs that the Explorer's menu has by name: those of the gallery, and the puzzles."""

from __future__ import annotations

from typing import Any

from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.program.program import Program
from shardviz.gallery import programs, puzzles


def known_names() -> tuple[str, ...]:
    """Every name that the menu has.

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
        name: as it stands in the menu.
        mesh: the mesh at hand, which a program of the gallery takes where it has all the axes that
            the program speaks of. A puzzle keeps its own: on another it is another puzzle.

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
        {"value": name, "label": name, "title": shelf.describe(name), "group": group}
        for group, shelf in (("Programs", programs), ("Puzzles", puzzles))
        for name in shelf.names()
    ]
