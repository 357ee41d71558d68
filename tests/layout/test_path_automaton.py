"""The automaton of a pattern matches what Python's `re` matches, in bounded time."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shardviz.axis_rules.dialects import Dialect
from shardviz.axis_rules.path_automaton import Unsupported, automaton, ways
from shardviz.axis_rules.path_matching import compiled, fits
from shardviz.base.errors import RuleError

TOKENS = (
    "a", "b", "/", ".", "1", "{", r"\d", r"\.", "[ab]", "[^/]", "[]a]", "(", "(?:", "(?P<n>", ")",
    "|", "*", "+", "?", "*?", "{2}", "{1,3}", "{,2}", "{2,}", "^", "$", r"\A", r"\Z",
)  # fmt: skip


@given(
    st.lists(st.sampled_from(TOKENS), max_size=9).map("".join),
    st.lists(st.text("ab/1.{", max_size=6), min_size=1, max_size=5),
)
def test_it_matches_as_re_does(pattern, paths):
    try:
        expression = re.compile(pattern)
        anywhere, whole = automaton(pattern, False), automaton(pattern, True)
    except (re.error, Unsupported):
        assume(False)
    for path in paths:
        assert anywhere.matches(path) == (expression.search(path) is not None)
        assert whole.matches(path) == (expression.fullmatch(path) is not None)


@pytest.mark.parametrize("dialect", [Dialect.REGEX, Dialect.KERAS])
@pytest.mark.parametrize(
    ("pattern", "path", "matched"),
    [
        ("(a+)+b", "a" * 1000, False),
        ("(a+)+b", "a" * 999 + "b", True),
        ("(a|aa)*b", "a" * 1000, False),
        ("(.*)*x", "a/" * 500, False),
        (".*a" * 12 + "b", "a" * 1000, False),
        ("a?" * 300 + "a" * 300, "a" * 300, True),
        ("([^/]+/)*kernel", "block/" * 100 + "kernel", True),
        ("(layer_[0-9]+/)+(wi|wo)/kernel", "layer_1/layer_22/wo/kernel", True),
    ],
)
def test_patterns_with_many_ways_are_matched(pattern, path, matched, dialect):
    assert fits(pattern, path, dialect) == matched


@pytest.mark.parametrize("pattern", ["(?=a)(a+)+b", r"(a+)+\1", "(?i)(a+)+b", "((a{99}){99}){99}"])
def test_patterns_that_no_automaton_matches_are_refused(pattern):
    with pytest.raises(RuleError):
        compiled(pattern, ignores_case=False)


def test_a_plain_pattern_has_few_ways():
    assert ways("decoder/.*/(wi|wo)/kernel", 40) < 10**4
