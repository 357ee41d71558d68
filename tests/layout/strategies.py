"""Hypothesis strategies: names as wild as they are allowed to be, specs and tables made of them."""

from __future__ import annotations

from hypothesis import strategies as st

from shardviz.axis_rules.rules import Rule, Rules
from shardviz.base.partition_spec import Spec

# Names that mean something to a reader unless they are quoted.
_WORDS = ("None", "none", "null", "P", "unreduced", "UNCONSTRAINED", "P.UNCONSTRAINED", "two words")
_MARKS = ("_", "-", "·", "→", ":=", "\\", "'", "a->b", "x=>y", "a→b", "a:=b", "a:b", "a=b", "a,b")
_OTHER = ("x;y", "a#b", "(x)", "[z]", "{u}", "it's", '"q"', "a\\b", "é", "维度", "<b>")


def _allowed(name: str) -> bool:
    return bool(name) and name == name.strip() and name.isprintable()


names = st.one_of(
    st.sampled_from(["x", "y", "z", "data", "model"]),
    st.sampled_from([*_WORDS, *_MARKS, *_OTHER]),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).filter(_allowed),
)


@st.composite
def specs(draw: st.DrawFn, marks: bool = True) -> Spec:
    dims = draw(st.lists(st.lists(names, max_size=3).map(tuple), max_size=5))
    free = {d for d, axes in enumerate(dims) if not axes and draw(st.booleans())}
    sets = [frozenset(draw(st.lists(names, max_size=2))) for _ in range(2)] if marks else []
    return Spec(tuple(dims), frozenset(free), *sets)


@st.composite
def tables(draw: st.DrawFn) -> Rules:
    def rule() -> Rule:
        axes = tuple(draw(st.lists(names, max_size=3)))
        return Rule(draw(names), axes, free=not axes and draw(st.booleans()))

    return Rules(tuple(rule() for _ in range(draw(st.integers(0, 6)))))
