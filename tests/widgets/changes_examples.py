"""Changes as a search finds them."""

from __future__ import annotations

from shardviz.advise.candidates import Candidate, Changes, Refusal, edit
from shardviz.base.partition_spec import Spec
from shardviz.compiled.report import Memory, Report
from shardviz.programs.program import Program


def found(program: Program) -> Changes:
    """One edit that a session can take, one that it cannot, and one that was dropped."""
    first, *others = program.arrays
    spec = Spec.parse("None, model")
    arrays = (first.replace(spec=spec), *others)
    takes = edit("argument", array=first.name, spec=spec, before=None)
    inside = edit("constraint", value="dot", variable="y", shape=(8,), source="f.py:3", spec=spec)
    before, after = (Report("f", "t", memory=Memory(arguments=size)) for size in (4096, 1024))
    changed = Candidate((takes,), program.replace(arrays=arrays), after, before)
    other = Candidate((inside,), program, after, before)
    return Changes.of([changed, other], refused=[Refusal((takes,), "same collective")])
