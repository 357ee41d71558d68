"""The help texts of the command `shardviz`."""

from __future__ import annotations

DESCRIPTION = (
    "How a model or a program is laid out over devices, and whether it stays so."
)
EPILOG = """\
WHAT is module:function or file.py:function, a function that is called without arguments and
returns a program (sv.program(...)), or a state: a tree of a model's parameters, with names,
shardings or --rules. The current folder is searched first. For compile, WHAT may also be a file
with HLO or StableHLO, or a folder with XLA's dump.

  shardviz plan train.py:make_step
  shardviz compile train:make_step --target tpu:v5e:4x4
  shardviz audit train:make_state --rules rules.txt --mesh "data=4, model=2"
  shardviz check train:make_step --no "all-gather over data" --at-most "1 MiB per step"
  shardviz check train:make_step --lock step.lock.json
  shardviz compare step.lock.json train:make_step

Exit codes: 0 as expected, 1 not so, 2 what cannot be read.
"""
COMMANDS = {
    "plan": "how the compiler shards every value, without compiling",
    "compile": "collectives and memory of a compiled program, or of a file of XLA",
    "audit": "how every array is split, and what each rule does",
    "check": "whether a program or state is as expected",
    "compare": "what differs between two, or from a lock",
    "doctor": "which versions are here, and what of jax works with them",
}
#: The help text of each option and argument.
OPTIONS = {
    "what": "module:function or file.py:function",
    "before": "WHAT, or the file of a lock",
    "after": "WHAT, or the file of a lock",
    "--target": (
        "compile for this, simulated CPUs by default; an audit compares its memory"
    ),
    "--specs": "compile nothing: compare specs only",
    "--rules": "a table of axis rules: a file, or the table itself",
    "--mesh": 'the mesh, such as "data=4, model=2"',
    "--dialect": "who reads the rules: linen, nnx, maxtext, regex, keras",
    "--json": "print JSON instead of text",
    "--no": 'no such collective: "all-gather over data", "over data"',
    "--at-most": (
        '"1 MiB per step", per collective, per all-gather, per device (memory)'
    ),
    "--sharded": "at least this share of bytes is split: 0.98 or 98%%",
    "--fits": "each device has the memory: tpu:v5p:8x8x16",
    "--lock": "all is as in this file",
    "--update": "write the --lock file where it differs",
    "--stage": (
        "whose collectives count: XLA's partitioner's (default), or those that run"
    ),
}
LOCK_IS_SAME = "{} is as it was"
