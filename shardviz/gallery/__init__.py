"""Example meshes, arrays, rule tables and programs that the widgets and lessons open with.

Each module is a shelf with `names()`, `get(name)` and `describe(name)`. Names and sentences cost
nothing; only `programs.get` imports jax, and nothing here starts a jax backend.
"""
