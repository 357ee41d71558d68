"""Example meshes, arrays, rule tables, scenarios, programs and puzzles, as the widgets
and lessons use them.

Each has `names()`, `get(name)` and `describe(name)`; `puzzles` and the module
`programs` also have `sources(name)`, to be pasted below `programs.IMPORTS`. The module
`functions` imports jax if it is installed, and is itself imported only when a
program or its source is asked for. Nothing here starts a jax backend.
"""

from shardviz.gallery.layouts import arrays, meshes, rules, scenarios
from shardviz.gallery.programs import puzzles

__all__ = ["arrays", "meshes", "puzzles", "rules", "scenarios"]
