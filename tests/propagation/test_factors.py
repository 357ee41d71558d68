"""Shardy's attributes as values."""

from __future__ import annotations

import pytest
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from shardviz.base.partition_spec import Spec
from shardviz.plans.backend import attributes
from shardviz.plans.backend.attributes import AttributeCache, SourceLocation, source_location

ONES = ", ".join(f"{letter}=1" for letter in "jklmnopqrstuvwxyz")
# Name: the attribute, the rule as einsum would have it, sizes, factors by group.
RULES = {
    "matmul": (
        "([i, k], [k, j])->([i, j]) {i=64, j=2048, k=512} reduction={k}",
        "[i, k], [k, j] -> [i, j]", {"i": 64, "j": 2048, "k": 512}, {"reduction": ("k",)},
    ),
    "a dimension split in two": (
        "([ij])->([i, j]) {i=2, j=32}", "[ij] -> [i, j]", {"i": 2, "j": 32}, {},
    ),
    "replicated and blocked": (
        "([i, j], [])->([i, j]) {i=3, j=64} need_replication={i} blocked_propagation={i}",
        "[i, j], [] -> [i, j]", {"i": 3, "j": 64},
        {"need_replication": ("i",), "blocked_propagation": ("i",)},
    ),
    "moving": (
        "([i, j])->([i, j]) {i=64, j=8} permutation={i}",
        "[i, j] -> [i, j]", {"i": 64, "j": 8}, {"permutation": ("i",)},
    ),
    "custom, nothing shared": (
        "([i, j])->([k, l], []) {i=8, j=8, k=8, l=8}, custom",
        "[i, j] -> [k, l], []", dict.fromkeys("ijkl", 8), {},
    ),
    "more factors than letters": (
        f"([z_1, i])->([z_1, i]) {{i=4, {ONES}, z_1=8}}",
        "[z_1, i] -> [z_1, i]", {"i": 4, **dict.fromkeys("jklmnopqrstuvwxyz", 1), "z_1": 8}, {},
    ),
    "scalars": ("([], [])->([])", "[], [] -> []", {}, {}),
}  # fmt: skip
GROUPS = ("reduction", "need_replication", "permutation", "blocked_propagation")


@pytest.fixture
def parse():
    """Parses an attribute of Shardy's dialect."""
    with ir.Context() as context:
        sdy.register_dialect(context)
        yield ir.Attribute.parse


@pytest.mark.parametrize("name", RULES)
def test_rules_of_attributes(name, parse):
    text, formula, sizes, groups = RULES[name]
    rule = attributes.read_rule(parse(f"#sdy.op_sharding_rule<{text}>"))
    assert (rule.formula, rule.sizes) == (formula, sizes)
    assert {group: getattr(rule, group) for group in GROUPS if getattr(rule, group)} == groups


SHARDINGS = {
    "not split": ("<@mesh, [{}, {}]>", Spec(((), ()))),
    "scalar": ("<@mesh, []>", Spec()),
    "two axes": ('<@mesh, [{"a", "b"}]>', Spec((("a", "b"),))),
    "open": ('<@mesh, [{"a", ?}, {?}]>', Spec((("a",), ()))),
    "part of an axis": ('<@mesh, [{"a":(1)2}]>', Spec((("a:(1)2",),))),
    "unreduced": ('<@mesh, [{}], unreduced={"a"}>', Spec(((),), unreduced=frozenset({"a"}))),
    "replicated": ('<@mesh, [{}], replicated={"a"}>', Spec(((),))),
    "both marks": (
        '<@mesh, [{"b"}], replicated={"c"}, unreduced={"a"}>',
        Spec((("b",),), unreduced=frozenset({"a"})),
    ),
    "one device": ("<@maximal_mesh_0, []>", Spec()),
    "odd names": ('<@mesh, [{"a b", "c\\22"}]>', Spec((("a b", 'c"'),))),
}


@pytest.mark.parametrize("name", SHARDINGS)
def test_shardings_of_attributes(name, parse):
    text, spec = SHARDINGS[name]
    cache = AttributeCache()
    assert cache.specs_of(parse(f"#sdy.sharding{text}")) == (spec,)
    assert cache.specs_of(parse(f"#sdy.sharding_per_value<[{text}]>")) == (spec,)
    assert cache.specs_of(parse(f"#sdy.sharding_per_value<[{text}, {text}]>")) == (spec, spec)


def test_edges_from_text():
    text = (
        '#sdy.propagation_edges<[{step-3 = [{"a" = operand-0 -> [operand-1, result-0]},'
        ' {"b":(1)2 = result-0 -> [operand-0]}]}, {step-7 = [{"c" = operand-1 -> [result-0]}]}]>'
    )
    found = attributes.parse_edges(text)
    assert [(e.number, e.axis, e.source, e.targets) for e in found] == [
        (3, "a", "operand-0", ("operand-1", "result-0")),
        (3, "b:(1)2", "result-0", ("operand-0",)),
        (7, "c", "operand-1", ("result-0",)),
    ]
    assert attributes.parse_edge_lists(f"[{text}, #sdy.propagation_edges<[]>]") == (found, ())


def test_steps_that_differ_in_their_numbers_are_parsed_once():
    attributes._parse_moves.cache_clear()
    step = '#sdy.propagation_edges<[{step-%d = [{"a" = operand-0 -> [result-0]}]}]>'
    numbers = [attributes.parse_edges(step % number)[0].number for number in (3, 4, 5)]
    assert numbers == [3, 4, 5]
    assert attributes._parse_moves.cache_info().misses == 1


LOCATIONS = {
    "a name alone": ('loc("max")', "max", ()),
    "nothing": ("loc(unknown)", "", ()),
    "one frame": ('loc("jit(f)/sin"("f"("/me/a.py":3:1 to :5)))', "jit(f)/sin", ("a.py:3",)),
    "calls": (
        'loc("sin"(callsite("f"("/me/a.py":3:1 to :5) at callsite("f"("/me/a.py":3:1 to :5) at'
        ' "<module>"("/me/b.py":9:0 to :4)))))',
        "sin",
        ("a.py:3", "b.py:9"),
    ),
    "frames of packages": (
        'loc("sin"(callsite("g"("/v/site-packages/flax/x.py":1:1) at "f"("/me/a.py":3:1))))',
        "sin",
        ("a.py:3",),
    ),
    "a file without frames": ('loc("sin"("/me/a.py":3:1))', "sin", ("a.py:3",)),
    "no name": (
        'loc(callsite("f"("/me/a.py":3:1) at "g"("/me/b.py":4:1)))',
        "",
        ("a.py:3", "b.py:4"),
    ),
    "a cell": ('loc("sin"("f"("/tmp/ipykernel_7/31.py":2:4)))', "sin", ("cell:2",)),
}


def module_at(location):
    return ir.Module.parse(f"module {{}} {location}").operation


@pytest.mark.parametrize("name", LOCATIONS)
def test_locations_from_text(name):
    text, op, stack = LOCATIONS[name]
    assert (source_location(text).op, source_location(text).stack) == (op, stack)


@pytest.mark.parametrize("name", LOCATIONS)
def test_locations_are_read_without_their_name_in_the_text(name, parse):
    text, _, _ = LOCATIONS[name]
    assert AttributeCache().location(module_at(text)) == source_location(text)


def test_frames_are_printed_once_for_all_names(parse, monkeypatch):
    frames = '(callsite("f"("/me/a.py":3:1) at "g"("/me/b.py":9:0)))'
    printed = []
    frames_of = attributes._frames_of
    monkeypatch.setattr(attributes, "_frames_of", lambda a: printed.append(a) or frames_of(a))
    cache = AttributeCache()
    for number in range(3):
        op = module_at(f'loc("blocks_{number}/add"{frames})')
        assert cache.location(op).op == f"blocks_{number}/add"
        assert cache.location(op).stack == ("a.py:3", "b.py:9")
    assert len(printed) == 1


INNER = (("relu.py:3", "relu"), ("f.py:10", "f"), ("main.py:5", "<module>"))
CALLS = {
    "the lines of the first call": (
        INNER, (("f.py:20", "f"), ("main.py:5", "<module>")),
        ("relu.py:3", "f.py:20", "main.py:5"), ("f", "relu"),
    ),
    "the same call": (
        INNER, INNER[1:], ("relu.py:3", "f.py:10", "main.py:5"), ("f", "relu"),
    ),
    "a body of a loop": (
        (("scan.py:12", "scan.<locals>.body"), ("scan.py:14", "scan")), (("scan.py:14", "scan"),),
        ("scan.py:12", "scan.py:14"), ("scan", "body"),
    ),
    "two functions on a line": (
        (("f.py:3", "f.<locals>.<lambda>"), ("f.py:3", "f")), (("f.py:3", "f"),),
        ("f.py:3",), ("f", "<lambda>"),
    ),
    "another function": (
        INNER, (("g.py:2", "g"),),
        ("relu.py:3", "f.py:10", "main.py:5", "g.py:2"), ("g", "f", "relu"),
    ),
    "no lines inside": ((), (("f.py:20", "f"),), ("f.py:20",), ("f",)),
    "no names": (
        (("a.py:1", ""), ("b.py:2", "")), (("b.py:2", ""), ("c.py:3", "")),
        ("a.py:1", "b.py:2", "c.py:3"), (),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_each_line_of_a_call_is_listed_once(name):
    inner, outer, stack, calls = CALLS[name]
    found = SourceLocation("jit(g)", outer).inner(SourceLocation("add", inner))
    assert (found.stack, found.calls) == (stack, calls)
