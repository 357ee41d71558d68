"""Example meshes, arrays, rule tables, scenarios, programs and puzzles.

The widgets and lessons use these examples. Each collection has `names()`, `get(name)`
and `describe(name)`. `puzzles` and the `programs` module also have `sources(name)`,
which returns code to paste below `programs.IMPORTS`. The `functions` module imports jax
if it is installed, so it is imported only when a program or its source is requested.
Nothing here starts a jax backend.
"""

from shardviz.gallery.layouts import arrays, meshes, rules, scenarios
from shardviz.gallery.programs import puzzles

__all__ = ["arrays", "meshes", "puzzles", "rules", "scenarios"]
