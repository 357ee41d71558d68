"""Edges of resolving and matching, with answers that are counted or computed by flax here."""

from __future__ import annotations

import re

import jax
import pytest
from flax.core.spmd import from_sharding_rules

import shardviz as sv
from shardviz.axis_rules.dialects import Dialect
from shardviz.axis_rules.fit import Fit, LargestArrays, Uncounted
from shardviz.axis_rules.path_automaton import automaton
from shardviz.axis_rules.path_matching import (
    MAX_PATTERN,
    compiled,
    fits,
    match_path,
    matched_spec,
    may_fit,
    missing_words,
    plain_words,
    required,
)
from shardviz.axis_rules.rules import PathRules, Rules
from shardviz.base.errors import RuleError
from shardviz.base.layout import lay_out
from shardviz.base.partition_spec import MAX_RANK, Spec
from tests.layout.test_rules_equal_flax import answer

MESH = sv.mesh(data=4, model=2)
FREE = jax.sharding.PartitionSpec.UNCONSTRAINED


@pytest.mark.parametrize(
    ("names", "rules", "codes"),
    [
        ("data model", [], []),
        # Names that nnx takes for axes: both are axes of the mesh, and the spec repeats one.
        ("data data", [], ["spec"]),
        ("tensor data", [], ["name is no axis"]),
        ("a data", [("a", "data")], ["spec"]),
        # Two dimensions share an axis, which is one problem of the spec.
        ("a b", [("a", "data"), ("b", "data")], ["spec"]),
        ("a b c", [("a", "data"), ("b", "data"), ("c", "tensor")], ["verdict", "spec"]),
        ("a b", [("a", ("data", "data")), ("b", "model")], ["verdict"]),
    ],
)
def test_what_fails_under_nnx(names, rules, codes):
    resolution = sv.resolve(names, rules, mesh=MESH, dialect="nnx")
    assert [problem.code for problem in resolution.failures] == codes


@pytest.mark.parametrize("names", [(None,), (FREE,), (FREE, None, "a"), ("a", FREE, "x")])
@pytest.mark.parametrize("rules", [[], [("a", "data")], [("a", FREE)]])
def test_entries_that_are_not_names_under_nnx(names, rules):
    spec = sv.resolve(names, rules, dialect="nnx").spec
    by_flax = answer(lambda: jax.sharding.PartitionSpec(*from_sharding_rules(names, rules)))
    assert spec.unconstrained == {d for d, entry in enumerate(by_flax) if entry is FREE}
    split = [() if entry in (None, FREE) else (entry,) for entry in by_flax]
    assert spec.dims == tuple(split)


@pytest.mark.parametrize(("letters", "accepted"), [(MAX_PATTERN, True), (MAX_PATTERN + 1, False)])
def test_how_long_a_pattern_may_be(letters, accepted):
    table = [("a" * letters, ("data",))]
    found = answer(lambda: sv.resolve("b", table, dialect="regex").verdicts[0].kind)
    assert (found == "does not match") == accepted


@pytest.mark.parametrize("pattern", ["a?b", "(a?)b", "a{0,1}b", "a{2}b", "a{1,2}b", "a+b", "a*b"])
@pytest.mark.parametrize("letters", range(5))
def test_how_often_an_automaton_repeats(pattern, letters):
    text = "a" * letters + "b"
    assert automaton(pattern, whole_text=True).matches(text) == bool(re.fullmatch(pattern, text))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("mlp embed", ()),
        (("mlp", None), ()),
        ("mlpp zzz", ((0, "mlpp", "mlp"), (1, "zzz", None))),
        (("zzz", None, "embed"), ((0, "zzz", None),)),
    ],
)
def test_which_names_have_no_rule(names, expected):
    resolution = sv.resolve(names, [("mlp", "model"), ("embed", None)])
    assert resolution.unmatched() == expected
    assert [decision.near for decision in resolution.decisions if decision.unknown] == [
        near for _, _, near in expected
    ]


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ("mlp", "Decision(dimension 0, mlp → model by rule 1)"),
        ("zzz", "Decision(dimension 0, zzz → None by no rule)"),
        ((None,), "Decision(dimension 0, nameless → None by no rule)"),
    ],
)
def test_a_decision_shows_its_rule(names, text):
    assert repr(sv.resolve(names, [("mlp", "model")]).decisions[0]) == text


# --- tables ---------------------------------------------------------------------------


@pytest.mark.parametrize("of", [Rules.of, PathRules.of, lambda table: Rules.parse(str(table))])
def test_a_table_has_at_most_ten_thousand_rules(of):
    table = [("mlp", "model")] * 10_000
    assert len(of(table)) == 10_000
    with pytest.raises(RuleError, match="10,000"):
        of([*table, ("mlp", "model")])


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "Rules(0 rules)"),
        (1, "Rules(1 rule: 'a0 → x')"),
        (4, "Rules(4 rules: 'a0 → x', 'a1 → x', 'a2 → x' and 'a3 → x')"),
        (5, "Rules(5 rules: 'a0 → x', 'a1 → x', 'a2 → x', 'a3 → x' and 1 more)"),
        (7, "Rules(7 rules: 'a0 → x', 'a1 → x', 'a2 → x', 'a3 → x' and 3 more)"),
    ],
)
def test_a_table_shows_four_rules(count, shown):
    assert repr(Rules.of([(f"a{n}", "x") for n in range(count)])) == shown


# Tables of which the second rule is wrong, and words of the error.
SECOND = {
    "no pair": (("b", "x", "y"), "Rule 2 must be a pair such as ('batch', 'data')"),
    "one entry": (("b",), "Rule 2 must be a pair"),
    "text": ("b", "Rule 2 must be a pair"),
    "a name that is no name": ((5, "x"), "the logical axis in rule 2"),
    "a number": (("b", 5), "Rule 2 must lead to a mesh axis, a tuple of them, or None; got 5"),
    "a spec": (
        ("b", jax.sharding.PartitionSpec("x")),
        "For a table of paths, write dialect='regex' or",
    ),
    "None among axes": (("b", ("x", None)), "or None alone; got ('x', None). For a table of paths"),
    "our spec": (("b", sv.Spec.of("x")), "For a table of paths, write dialect='regex' or"),
    "an axis that is no name": (("b", ("x", 5)), "the mesh axis in rule 2"),
    "a call": (("b", 'fsdp(axis="data")'), "In rule 2, "),
    "a call in a tuple": (("b", ("x", "fsdp(x)")), "In rule 2, "),
}


@pytest.mark.parametrize(("rule", "words"), SECOND.values(), ids=SECOND)
def test_errors_number_rules_from_one(rule, words):
    with pytest.raises(RuleError) as refused:
        Rules.of([("a", "x"), rule])
    assert words in str(refused.value)


SECOND_PATTERN = {
    "no pair": (("b", (), ()), "Rule 2 must be a pair such as ('mlp/.*/kernel', (None, 'model'))"),
    "a number": ((5, ()), "The pattern in rule 2 must be printable text; got 5"),
    "a line break": (("a\nb", ()), "The pattern in rule 2 must be printable text"),
    "a number as spec": (("b", 5), "Rule 2, for 'b': the right side is a PartitionSpec"),
    "a call": (("b", 'fsdp(axis="data")'), "is not a mesh axis but a function"),
    "too many dimensions": (("b", (None,) * (MAX_RANK + 1)), "Rule 2, for 'b'"),
}


@pytest.mark.parametrize(("rule", "words"), SECOND_PATTERN.values(), ids=SECOND_PATTERN)
def test_errors_number_patterns_from_one(rule, words):
    with pytest.raises(RuleError) as refused:
        PathRules.of([("a", ()), rule])
    assert words in str(refused.value)


@pytest.mark.parametrize("table", [Rules.of(("a", "x")), "a -> x", b"a", {("a", "x")}, frozenset()])
def test_a_table_of_paths_is_an_ordered_list_of_pairs(table):
    with pytest.raises(RuleError, match="A table of paths is pairs"):
        PathRules.of(table)


P = jax.sharding.PartitionSpec
RIGHT_SIDES = {
    "jax's": (P(None, "model"), "P(None, 'model')"),
    "ours": (Spec.parse("None, model"), "P(None, 'model')"),
    "a tuple": ((None, "model"), "P(None, 'model')"),
    "a list": ([None, ["data", "model"]], "P(None, ('data', 'model'))"),
    "text": ("None, model", "P(None, 'model')"),
    "text of a spec": ("PS(None, 'model')", "P(None, 'model')"),
    "text of jax's": ("jax.sharding.PartitionSpec('data')", "P('data')"),
    "None": (None, "P()"),
    "as many dimensions as there can be": ((None,) * MAX_RANK, str(Spec(((),) * MAX_RANK))),
}


@pytest.mark.parametrize(("right", "spec"), RIGHT_SIDES.values(), ids=RIGHT_SIDES)
def test_right_sides_of_patterns(right, spec):
    (rule,) = PathRules.of({"mlp": right})
    assert (rule.pattern, str(rule.spec)) == ("mlp", spec)
    assert PathRules.of([rule])[0] is rule


def test_the_first_rule_of_a_pattern_is_its_number():
    table = PathRules.of([("a", ("x",)), ("b", ()), ("a", ("y",))])
    assert dict(table.patterns) == {"a": 0, "b": 1}
    assert table.pairs() == (("a", P("x")), ("b", P()), ("a", P("y")))
    assert PathRules.of(table) is table
    assert (str(PathRules()), repr(PathRules())) == ("no patterns", "PathRules(0 patterns)")


def test_rules_are_flax_pairs():
    given = (("a", "x"), ("b", ("x", "y")), ("c", None), ("d", FREE), ("e", ("x",)), ("a", "y"))
    table = Rules.of(*given)
    pairs = (*given[:4], ("e", "x"), ("a", "y"))
    assert table.pairs() == pairs
    assert table.by_name["a"] == (0, 5)
    assert [rule.target for rule in table] == ["x", "(x, y)", "None", "UNCONSTRAINED", "x", "y"]
    assert table.nearest("bb") == "b"


# Text, and the pairs that are read.
TEXTS = {
    "comments and empty lines": (
        "#\n\na -> x  # one; two\n  \n;;b -> y",
        (("a", "x"), ("b", "y")),
    ),
    "a quoted semicolon": ("'a;b' -> x", (("a;b", "x"),)),
    "a quoted number sign": ("a -> '#x'", (("a", "#x"),)),
    "a comma at the end": ("a -> x,\nb -> (y, z),", (("a", "x"), ("b", ("y", "z")))),
    "dashes": ("- a: x\n- b: y", (("a", "x"), ("b", "y"))),
    "commas between rules": (
        "a → x, 'b, c -> d' = (y, z),e: None",
        (("a", "x"), ("b, c -> d", ("y", "z")), ("e", None)),
    ),
    "dashes, commas and comments": (
        "- [a, x]  # one\n# two\n- [b, y],",
        (("a", "x"), ("b", "y")),
    ),
    "dashes before lists": ("- [a, x]\n- [b, y]", (("a", "x"), ("b", "y"))),
    "one pair": ("('a', 'x')", (("a", "x"),)),
    "a list of one pair": ("[('a', 'x')]", (("a", "x"),)),
    "nothing": (" \n# no rules\n", ()),
}


@pytest.mark.parametrize(("text", "pairs"), TEXTS.values(), ids=TEXTS)
def test_text_is_read(text, pairs):
    assert Rules.parse(text).pairs() == pairs
    assert Rules.parse(Rules.parse(text).text()).pairs() == pairs


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a -> x\nb ->", "Cannot read rule 2, 'b ->'"),
        ("a -> x\nb", "Cannot read rule 2, 'b'"),
        ("a x", "Cannot read rule 1"),
        ("-", "Cannot read rule 1, '-'"),
        ("- [a, x]\n- [b", "Cannot read '[b': '[' was never closed"),
        ("a -> ,", "Cannot read"),
        (5, "Rules are typed as text; got 5"),
    ],
)
def test_text_that_is_no_rule_is_refused(text, words):
    with pytest.raises(RuleError) as refused:
        Rules.parse(text)
    assert words in str(refused.value)


# --- resolutions ----------------------------------------------------------------------


def test_a_resolution_shows_its_names():
    found = sv.resolve(("a", None, "b"), [("a", "x")])
    assert repr(found) == "Resolution(a, _, b → P('x', None, None), linen)"


@pytest.mark.parametrize(
    ("names", "dimension"),
    [
        # What is unsplit on purpose, or has no name beside one that has, needs no edit.
        ("embed mlp", None),
        (("embed", None), None),
        ("embed zzz", None),
        ((None, None), 0),
        ("embed mlpp", 1),
        ("mlpp embed", 0),
        ("seq mlp", 0),
    ],
)
def test_the_dimension_of_the_first_remedy(names, dimension):
    table = [("embed", None), ("mlp", "model"), ("seq", "model")]
    found = sv.resolve(names, table, mesh=MESH, shape=(8, 8)).first_remedy()
    assert (None if found is None else found[0]) == dimension


def test_a_tuple_of_too_many_names_is_refused():
    assert len(sv.resolve((None,) * MAX_RANK, []).names) == MAX_RANK
    with pytest.raises(sv.ShardvizError):
        sv.resolve((None,) * (MAX_RANK + 1), [])


def test_a_shape_has_one_size_for_each_name():
    for shape in ((8,), (8, 8, 8)):
        with pytest.raises(RuleError, match="2 names"):
            sv.resolve("a b", [], shape=shape)
    assert sv.resolve("a b", [], shape=(8, 8)).shape == (8, 8)


# The rule that is asked, and who holds its axes: axis, dimension and rule.
HELD = {
    "all": ([("a", ("x", "y")), ("b", ("y", "x"))], "axis taken", (("y", 0, 0), ("x", 0, 0))),
    "one of two": (
        [("a", "x"), ("b", ("x", "y"))], "only part of the tuple is free", (("x", 0, 0),)),
    "by two": (
        [("a", "x"), ("c", "y"), ("b", ("x", "y"))], "axis taken", (("x", 0, 0), ("y", 2, 1))),
}  # fmt: skip


@pytest.mark.parametrize(("table", "kind", "holders"), HELD.values(), ids=HELD)
def test_who_holds_the_axes_of_a_rule(table, kind, holders):
    verdict = sv.resolve("a b c", table).decisions[1].verdicts[-1]
    assert (verdict.kind, tuple(map(tuple, verdict.taken))) == (kind, holders)


# --- patterns -------------------------------------------------------------------------


REPEATS = "(?=a)a*a*a*b"  # an automaton cannot look ahead


# With three repeats a path of n letters has C(n + 4, 4) ways: 9,691,375 for 121 letters, and
# 10,668,000 for 124.
@pytest.mark.parametrize(("letters", "accepted"), [(40, True), (121, True), (124, False)])
def test_a_pattern_with_ten_million_ways_needs_an_automaton(letters, accepted):
    path = "a" * (letters - 1) + "b"
    if accepted:
        assert fits(REPEATS, path, Dialect.REGEX)
        return
    with pytest.raises(RuleError, match="too many ways"):
        fits(REPEATS, path, Dialect.REGEX)
    assert fits(REPEATS.replace("(?=a)", ""), path, Dialect.REGEX)


def test_only_patterns_with_unbounded_ways_need_an_automaton():
    assert compiled("(?=a)ab", False).search("xab")
    with pytest.raises(RuleError, match="unbounded"):
        compiled("(?=a)(a+)+b", False)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("mlp/.*/kernel", "/kernel"),
        ("^decoder/.*/wi$", "decoder/"),
        ("layer-1", "layer-1"),
        ("a.*bcd.*e", "bcd"),
        (".*", ""),
        ("a+/kernel", ""),
        ("kernels?", ""),
        ("(wi|wo)/kernel", ""),
        ("a.b", ""),
    ],
)
def test_text_that_a_pattern_requires(pattern, text):
    assert required(pattern) == text
    assert may_fit(pattern, f"x{text}y", Dialect.REGEX)
    assert may_fit(pattern, "", Dialect.REGEX) == (text == "")
    for path in ("mlp/a/kernel", "decoder/b/wi", "layer-1", "abcde", "aa/kernel", "wi/kernel"):
        if not may_fit(pattern, path, Dialect.REGEX):
            assert re.search(pattern, path) is None


@pytest.mark.parametrize(
    ("pattern", "words", "missing"),
    [
        ("mlp/.*/kernels?$", ["mlp", "kernel"], ("kernel",)),
        (r"\bdense\d/(wi|wo)[abc]bias{2}", ["dense", "wi", "wo", "bias"], ("dense", "wo", "bias")),
        ("(?i)wi/x", ["wi"], ()),
        ("wi/ab*/mlp", ["wi", "mlp"], ()),
        ("mlp/mlp/up/up", ["mlp", "mlp", "up", "up"], ("up",)),
        (".*", [], ()),
    ],
)
def test_words_of_a_pattern_and_those_that_a_path_lacks(pattern, words, missing):
    assert [word[0] for word in plain_words(pattern)] == words
    assert all(pattern[word.start() : word.end()] == word[0] for word in plain_words(pattern))
    assert missing_words(pattern, "mlp/wi") == missing


TABLE = PathRules.of([("dense.*", ("model",)), (".*kernel", ()), ("a.b", ("data",))])
# The winner, the patterns of which too many match, and the code of the problem.
DECIDED = {
    "regex, two": ("dense/kernel", Dialect.REGEX, 0, (), None),
    "regex, the second": ("mlp/kernel", Dialect.REGEX, 1, (), None),
    "regex, none": ("mlp/bias", Dialect.REGEX, None, (), "no match"),
    "keras, two": ("dense/kernel", Dialect.KERAS, None, (0, 1), "several match"),
    "keras, one": ("mlp/kernel", Dialect.KERAS, 1, (), None),
    "keras, none": ("mlp/bias", Dialect.KERAS, None, (), None),
    "keras, a key": ("a.b", Dialect.KERAS, 2, (), None),
    "an unreadable path": ("a\nb", Dialect.REGEX, None, (), "unreadable"),
}


@pytest.mark.parametrize(
    ("path", "dialect", "winner", "several", "code"), DECIDED.values(), ids=DECIDED
)
def test_which_pattern_decides(path, dialect, winner, several, code):
    match = match_path(path, TABLE, dialect)
    assert (match.winner, match.several) == (winner, several)
    assert getattr(match.problem, "code", None) == code
    spec = matched_spec(match, TABLE, (8, 8), dialect)
    if winner is not None:
        assert spec == TABLE[winner].spec
    else:
        assert spec == (Spec(((), ())) if code is None else None)


@pytest.mark.parametrize(
    ("shape", "dialect", "split"),
    [
        ((8,), Dialect.REGEX, True),
        ((1,), Dialect.REGEX, False),
        ((1, 1), Dialect.REGEX, False),
        ((), Dialect.REGEX, False),
        ((2,), Dialect.REGEX, True),
        ((0,), Dialect.REGEX, True),
        (None, Dialect.REGEX, True),
        ((1,), Dialect.KERAS, True),
    ],
)
def test_arrays_of_one_element_are_not_split_by_patterns(shape, dialect, split):
    spec = matched_spec(match_path("dense/bias", TABLE, dialect), TABLE, shape, dialect)
    assert spec == (Spec((("model",),)) if split else Spec())


# --- whether it fits ------------------------------------------------------------------

GIB = 1 << 30
# Needed, capacity and free bytes, arrays that are not counted; the code, ok and share.
FITS = [
    ((16 * GIB, 16 * GIB, None, 0), ("fits", True, 1.0)),
    ((16 * GIB + 1, 16 * GIB, None, 0), ("too large", False, 1 + 1 / (16 * GIB))),
    ((20 * GIB, 16 * GIB, 8 * GIB, 0), ("too large", False, 1.25)),
    ((8 * GIB, 16 * GIB, 8 * GIB, 0), ("fits", True, 0.5)),
    ((8 * GIB + 1, 16 * GIB, 8 * GIB, 0), ("not now", False, 0.5 + 1 / (16 * GIB))),
    ((8 * GIB, None, 4 * GIB, 0), ("not now", False, None)),
    ((8 * GIB, None, None, 0), ("unknown", None, None)),
    ((8 * GIB, None, 8 * GIB, 0), ("unknown", None, None)),
    ((8 * GIB, 16 * GIB, None, 1), ("unknown", None, 0.5)),
    ((8 * GIB, 16 * GIB, 8 * GIB, 2), ("unknown", None, 0.5)),
    ((20 * GIB, 16 * GIB, None, 1), ("too large", False, 1.25)),
    ((0, 16 * GIB, None, 0), ("fits", True, 0.0)),
]


@pytest.mark.parametrize(("numbers", "expected"), FITS)
def test_what_fits(numbers, expected):
    needed, capacity, free, uncounted = numbers
    fit = Fit(needed, capacity, free=free, uncounted=Uncounted(uncounted, 64 * uncounted))
    assert (fit.code, fit.ok, fit.share) == expected
    assert bool(fit.uncounted) is (uncounted > 0)
    # Without the facts that are left out, nothing is uncounted and nothing in use.
    plain = Fit(needed, capacity)
    assert (plain.arrays_only, bool(plain.uncounted), plain.free) == (False, False, None)


def test_the_three_largest_arrays_are_named_and_layers_count_together():
    sizes = {"a": 8, "b": 64, "c": 32, "layers.0.w": 24, "layers.1.w": 24, "empty": 0, "d": 16}
    layouts = {name: lay_out((n,), Spec(), MESH, "int8") for name, n in sizes.items()}
    largest = LargestArrays.of(layouts).arrays
    assert [(a.name, a.count, a.layout.bytes_per_device) for a in largest] == [
        ("b", 1, 64),
        ("layers.{0..1}.w", 2, 24),
        ("c", 1, 32),
    ]
    few = {name: layouts[name] for name in ("a", "empty")}
    assert [a.name for a in LargestArrays.of(few).arrays] == ["a"]
    # Layers that are split in another way do not count together.
    layouts["layers.1.w"] = lay_out((48,), Spec.parse("model"), MESH, "int8")
    assert [a.name for a in LargestArrays.of(layouts).arrays][:2] == ["b", "c"]
