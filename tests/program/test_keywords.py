"""The functions for programs name what they do not know."""

from __future__ import annotations

import inspect

import pytest

import shardviz as sv


def made():
    return sv.program(lambda x: x, sv.array("x", (8,)), mesh="data=1")


WRONG = {
    "a slip": (
        "rule",
        r"sv.program takes no rule=, and neither does the function. Did you mean 'rules'\?",
    ),
    "jax's own": ("in_shardings", "takes no in_shardings=, and neither does the function"),
    "something else": (
        "foo",
        r"Known: 'fn', 'mesh', .* sv.program takes fn=, mesh=, .*; the function takes x=.",
    ),
}


@pytest.mark.parametrize(("keyword", "words"), WRONG.values(), ids=WRONG)
def test_unknown_keywords_are_named_with_the_known(keyword, words):
    with pytest.raises(sv.ShardvizError, match=words):
        sv.program(lambda x: x, sv.array("x", (8,)), mesh="data=1", **{keyword: 1})  # type: ignore[arg-type]


def test_the_signature_stays():
    names = list(inspect.signature(sv.program).parameters)
    assert names[:4] == ["fn", "arrays", "mesh", "rules"]


def test_unknown_parts_of_a_program_are_named_with_the_known():
    with pytest.raises(sv.ShardvizError, match=r"no part 'foo'. Known: 'fn', 'arrays'"):
        made().replace(foo=1)
    with pytest.raises(sv.ShardvizError, match=r"no part 'rule'. Did you mean 'rules'\?"):
        made().replace(rule=1)
