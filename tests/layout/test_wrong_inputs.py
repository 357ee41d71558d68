"""What people type and paste that is wrong: one printable sentence each, and nothing changes."""

from __future__ import annotations

import itertools

import pytest

import shardviz as sv

MESH = sv.mesh(data=4, model=2)
RULES = sv.rules(("batch", "data"), ("mlp", "model"))
SHAPE = (8, 12)
ROWS = [("w", SHAPE, "embed mlp")]

HTML = "<img src=x onerror=alert(1)>"
CODE = "__import__('os').system('true')"
LONG = "x" * 300_000
BLANKS, TABS = " " * 60_000, "\t" * 60_000
YAML_BOMB = "rules:\n- &a [x, x, x, x, x, x, x, x, x, x]\n"
for previous, name in itertools.pairwise("abcdefghij"):
    YAML_BOMB += f"- &{name} [{', '.join(['*' + previous] * 10)}]\n"
NUL, TURNED, SURROGATE = "a\x00b", "abc\u202edcba", "mo\ud800del"

#: field -> how the functions take it, and what they refuse
FIELDS = {
    "name": (
        [lambda t: sv.mesh([(t, 4)]), lambda t: sv.array(t, SHAPE)],
        ["", "  ", NUL, "a\nb", "\x1b[31mred", TURNED, "mod\u200bel", SURROGATE, LONG],
    ),
    "mesh": (
        [sv.mesh, lambda t: sv.layout(SHAPE, "data", t), lambda t: sv.audit(ROWS, RULES, t)],
        [
            "", "  ", "data", "=4", "data=0", "data=-4", "data=2.5", "data=1e3", "data=nan",
            "data=0x10", "data=٤", "data=4²", "data=four", "data=99999999999999999999",
            "data=" + "9" * 5000, "data=5000, model=5000", "data=4, data=2", "'data=4", CODE,
            HTML, f"{NUL}=4", f"{TURNED}=4", f"{SURROGATE}=4", LONG, "a=1," * 9_000,
            f"{'x' * 101}=4", "data=1__0", "data=1_", f"data{BLANKS}=4x", f"data{TABS}=4x",
            itertools.repeat(("a", 1)),
        ],
    ),
    "shape": (
        [lambda t: sv.array("w", t), lambda t: sv.layout(t, "", MESH)],
        [
            "-8", "8.5", "1e3", "nan", "eight", "8 8", "8,,8", "(8, 8", "0xff", "٨",
            "99999999999999999999", "9" * 5000, "281474976710656, 281474976710656",
            ", ".join(["281474976710656"] * 64), ", ".join(["1"] * 65), LONG, CODE, HTML,
            "8\x00", "1__0", f"8{BLANKS}x", f"{BLANKS}({BLANKS}", itertools.repeat(8),
            range(10**12),
        ],
    ),
    "dtype": (
        [lambda t: sv.array("w", SHAPE, dtype=t)],
        ["", "float33", "bfloat61", HTML, "float32\x00", "\ud800", LONG],
    ),
    "logical": (
        [lambda t: sv.array("w", SHAPE, t), lambda t: sv.resolve(t, RULES, shape=SHAPE)],
        [
            "embed", "embed mlp heads", "(embed, mlp", "embed) mlp", "'embed mlp", "embed=mlp",
            "'' mlp", f"{NUL} mlp", f"{TURNED} mlp", f"{SURROGATE} mlp", LONG,
        ],
    ),
    "spec": (
        [
            lambda t: sv.layout(SHAPE, t, MESH),
            lambda t: sv.layout(sv.array("w", SHAPE, spec=t), mesh=MESH),
        ],
        [
            "P('nowhere')", "modle", "data, data", "(data, data)", "data, None, None",
            "((data, model), None)", "(" * 5000, "P(data", "data)", "P('data'))", "data,,model",
            ",", "data model", "P('data", "f('data')", CODE, "(lambda: 1)()", "P(1)", HTML,
            "P('')", f"P('{NUL}')", f"'{TURNED}'", f"'{SURROGATE}'", "x + y", "[x for x in y]",
            "P('data', unreduced={'model'})", "P('data', reduced={'model'})",
            "P('data', unreduced={'data'})", "P(unreduced={'model'", "P(other=x)", "P(**x)",
            "None, (data, model)", LONG, "None," * 200_000,
        ],
    ),
    "rules": (
        [sv.rules, lambda t: sv.resolve("embed mlp", t), lambda t: sv.audit(ROWS, t, MESH)],
        [
            "batch data", "batch ->", "-> data", "batch -> data -> model", "mlp -> (data, model",
            "mlp -> data)", "'batch -> data", "mlp -> " + "(" * 5000, CODE, "'' -> data",
            "batch -> ''", f"{NUL} -> data", f"{TURNED} -> data", f"batch -> {SURROGATE}", LONG,
            "a -> b\n" * 10_001, "a -> data, b ->", "[('a', 'b', 'c')]", "a ->\nb -> c",
            f"{BLANKS}->{BLANKS}", f"-{BLANKS}", "\n" * 60_000 + "x", "'" + "\\'" * 60_000,
            "[" * 60_000, "- " * 60_000, "1+" * 60_000, itertools.repeat(("a", "b")), YAML_BOMB,
            "rules: &a [*a]", "rules: !!timestamp a", "rules: !!bool a", "rules: !!int x",
            "rules: [1" + ":1" * 60_000 + "]", "rules: " + "[" * 60_000,
            "[('a', P(b=c))]",
        ],
    ),
    "paths": (
        [
            lambda t: sv.resolve("w", t, dialect="regex"),
            lambda t: sv.audit(ROWS, t, MESH, dialect="regex"),
        ],
        [
            "mlp/.*/kernel data", "mlp/.*/kernel -> P(", CODE, f"mlp -> {CODE}", "no/rules.yml",
            "(?=a)(a+)+b -> P('model')", "(a+)+\\1 -> P('model')", "((a{99}){99}){99} -> P()",
        ],
    ),
    "bytes": (
        [
            lambda t: sv.remedies(sv.resolve("embed mlp", RULES, mesh=MESH, shape=SHAPE), t),
        ],
        ["1 iB", "1iB", "1__0", "8 MiB x", "9" * 30 + " GiB", f"8{BLANKS}MiB"],
    ),
    "ids": (
        [lambda ids: sv.mesh(data=4, device_ids=ids), lambda p: sv.mesh(data=4, processes=p)],
        [[[1, 2], [3]], [10**30] * 4, [2**63] * 4, range(10**12), itertools.count(), [0.5] * 4],
    ),
    "dialect": (
        [lambda t: sv.resolve("embed mlp", RULES, dialect=t)],
        ["", "pax", "lenin", HTML],
    ),
}  # fmt: skip

CASES = [
    pytest.param(function, text, id=f"{field}-{number}-{ascii(str(text))[:24]}")
    for field, (functions, texts) in FIELDS.items()
    for number, function in enumerate(functions)
    for text in texts
]


@pytest.mark.parametrize(("function", "text"), CASES)
def test_each_gives_one_printable_sentence(function, text):
    with pytest.raises(sv.ShardvizError) as caught:
        function(text)
    sentence = str(caught.value)
    assert sentence.isprintable(), ascii(sentence)
    assert 10 < len(sentence) <= 500, (len(sentence), sentence[:200])
    assert sentence.endswith((".", "?", ":")), sentence
