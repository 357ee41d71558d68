"""The help texts of the command `shardviz`."""

from __future__ import annotations

DESCRIPTION = "Shows how a model or a program is laid out over devices, and checks it."
EPILOG = """\
WHAT is module:function or file.py:function. The function is called without arguments, and
must return a program (sv.program(...)) or a state: a tree of a model's parameters, with names,
shardings or --rules. The current folder is searched first. For compile, WHAT may also be a file
of HLO or StableHLO, or a folder with XLA's dump.

  shardviz plan train.py:make_step
  shardviz compile train:make_step --target tpu:v5e:4x4
  shardviz audit train:make_state --rules rules.txt --mesh "data=4, model=2"
  shardviz check train:make_step --no "all-gather over data" --at-most "1 MiB per step"
  shardviz check train:make_step --lock step.lock.json
  shardviz compare step.lock.json train:make_step

Exit codes: 0 as expected, 1 not as expected, 2 wrong or unreadable input.
"""
COMMANDS = {
    "plan": "how the compiler shards every value, without compiling",
    "compile": "collectives and memory of a compiled program, or of a file from XLA",
    "audit": "how every array is split, and what each rule does",
    "check": "whether a program or state is as expected",
    "compare": "how two programs, states or locks differ",
    "doctor": "the installed versions, and which private names of jax work",
}
#: The help text of each option and argument.
OPTIONS = {
    "what": "module:function or file.py:function",
    "before": "WHAT, or a lock file",
    "after": "WHAT, or a lock file",
    "--target": (
        "target of the compile (default: simulated CPUs), or the chip that an audit must fit"
    ),
    "--specs": "compile nothing: compare specs only",
    "--rules": "a table of axis rules: a file, or the table itself",
    "--mesh": 'the mesh, such as "data=4, model=2"',
    "--dialect": "library that reads the rules: linen, nnx, maxtext, regex, keras",
    "--json": "print JSON instead of text",
    "--no": 'expect no such collective: "all-gather over data", "over data"',
    "--at-most": (
        'limit: "1 MiB per step" or per all-gather (the sum of all), per collective (each'
        " of them), per device (memory)"
    ),
    "--sharded": "least share of the bytes that must be split: 0.98 or 98%%",
    "--fits": "hardware whose memory must be enough: tpu:v5p:8x8x16",
    "--lock": "lock that the program or state must match",
    "--update": "write the --lock file if it differs",
    "--stage": (
        "collectives to check: those of XLA's partitioner (default), or the compiled ones"
    ),
}
NO_FILE = "there is no file {!r} either"
FILE_OF_XLA = ". For a file of XLA: shardviz compile {}"
LOCK_IS_SAME = "{} is unchanged"
