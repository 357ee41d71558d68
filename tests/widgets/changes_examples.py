"""Changes as a search finds them."""

from __future__ import annotations

from shardviz.advise.candidates import Candidate, Changes, SameCollective
from shardviz.advise.edits import ConstrainValue, SplitArgument
from shardviz.base.partition_spec import Spec
from shardviz.compiled.report import Memory, Report
from shardviz.programs.program import Program


def found(program: Program) -> Changes:
    """One edit that a session can take, one that it cannot, and one that was dropped."""
    first, *others = program.arrays
    spec = Spec.parse("None, model")
    arrays = (first.replace(spec=spec), *others)
    takes = SplitArgument(first.name, spec)
    inside = ConstrainValue("dot", "y", "f.py:3", (8,), spec)
    before, after = (Report("f", "t", memory=Memory(arguments=size)) for size in (4096, 1024))
    changed = Candidate((takes,), program.replace(arrays=arrays), after, before)
    other = Candidate((inside,), program, after, before)
    return Changes.of([changed, other], refused=[SameCollective((takes,))])
