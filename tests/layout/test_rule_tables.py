"""The tables that people have: files, text and objects; and what is no table, in one sentence."""

from __future__ import annotations

import contextlib
import json
import os
import random
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.axis_rules.rule_tables import read_rules
from shardviz.base.errors import MissingPackage
from shardviz.base.parse import MAX_TEXT
from shardviz.types import PathRules

MESH = sv.mesh(data=4, model=2)
NAMES = sv.rules(("batch", ("data", "fsdp")), ("mlp", "model"), ("embed", None), ("mlp", ()))
PATHS = sv.rules(
    [("wte/embedding", P("mp", "fsdp")), (r"attn/(wq|wk)\d/kernel", P(None, ("mp", "sp"))),
     (".*", P())], dialect="regex",
)  # fmt: skip

MAXTEXT = """
# The base of a configuration, as MaxText has it.
base_config: "base.yml"
mesh_axes: ['data', 'fsdp', 'model']
logical_axis_rules: [
  ['batch', ['data', 'fsdp']],
  ['mlp', 'model'],   # a comment
  ['embed', null],
  ['mlp', []],
]
learning_rate: 3.e-5
data_sharding: [['data', 'fsdp']]
"""
BLOCK = """
logical_axis_rules:
- - batch
  - [data, fsdp]
- [mlp, model]
- - embed
  - ~
- ["mlp", []]
"""
ALIASES = """
shards: &shards [data, fsdp]
logical_axis_rules: [[batch, *shards], [mlp, model], [embed, Null], [!!str mlp, []]]
"""
LITERAL = r"""RULES = [
    ("wte/embedding", P('mp', 'fsdp')),
    ('attn/(wq|wk)\\d/kernel', P(None, ('mp', 'sp'))), ('.*', None),
]"""
LINES = r"""
# one line per pattern
wte/embedding -> P('mp', 'fsdp')
attn/(wq|wk)\d/kernel → None, (mp, sp)
'.*' -> None,
"""
JSON_NAMES = '[["batch", ["data", "fsdp"]], ["mlp", "model"], ["embed", null], ["mlp", []]]'
JSON_PATHS = (
    r'{"wte/embedding": ["mp", "fsdp"], "attn/(wq|wk)\\d/kernel": [null, ["mp", "sp"]], ".*": []}'
)
#: label -> (content, the end of the file's name, the dialect where it has to be named)
TEXTS: dict[str, tuple[str, str, str | None]] = {
    "maxtext": (MAXTEXT, ".yml", None),
    "block yaml": (BLOCK, ".yaml", "maxtext"),
    "aliases": (ALIASES, ".yaml", None),
    "json": (JSON_NAMES, ".json", None),
    "json of a mapping": (
        '{"batch": ["data", "fsdp"], "mlp": "model", "embed": null, "mlp": []}',
        ".json",
        None,
    ),
    "json of a record": (f'{{"mesh": [["data", 4]], "rules": {JSON_NAMES}}}', ".json", "linen"),
    "typed": ("batch -> (data, fsdp)\nmlp -> model\nembed -> None\nmlp: ()", ".txt", None),
    "python names": (f"RULES = {JSON_NAMES.replace('null', 'None')}", ".txt", None),
    "literal": (LITERAL, ".txt", None),
    "lines": (LINES, ".txt", "regex"),
    "json of paths": (JSON_PATHS, ".json", "keras"),
    "dict literal": (f"RULES = {JSON_PATHS.replace('null', 'None')}", ".txt", "regex"),
}
NAMED = (
    "maxtext", "block yaml", "aliases", "json", "json of a mapping", "json of a record", "typed",
    "python names",
)  # fmt: skip


def expected(label: str) -> Any:
    return NAMES if label in NAMED else PATHS


@pytest.mark.parametrize("label", TEXTS)
def test_text_and_file_are_the_table(label, tmp_path):
    text, ending, dialect = TEXTS[label]
    assert sv.rules(text, dialect=dialect) == expected(label)
    file = tmp_path / f"table{ending}"
    file.write_text(text)
    assert sv.rules(file, dialect=dialect) == expected(label)
    assert sv.rules(str(file), dialect=dialect) == expected(label)
    rows = [("wte/embedding", (8, 8), "batch mlp")]
    mesh = sv.mesh(data=2, fsdp=2, model=2, mp=2, sp=1)
    reader = dialect or ("linen" if label in NAMED else "regex")
    wanted = sv.Spec.of(("data", "fsdp"), "model") if label in NAMED else sv.Spec.of("mp", "fsdp")
    assert sv.audit(rows, file, mesh, dialect=reader).rows[0].spec == wanted


#: label -> (Python source, its table as pairs)
EASYLM = """
import jax
from jax.sharding import PartitionSpec as PS, Mesh
from flax import linen as nn

class LLaMAConfigurator(object):
    \'\'\' Rules for ("a", "b").\'\'\'
    names = [("wq", 1), ("wk", 2)]

    @staticmethod
    def get_partition_rules():
        # PyTree paths
        return (
            # embeddings
            ("transformer/wte/embedding", PS("mp", "fsdp")),
            ("attention/(wq|wk|wv)/kernel", PS("fsdp", "mp")),
            ("feed_forward/w2/kernel", PS(("mp", "sp"), None)),
            ('.*', PS(None)),
        )

if __name__ == "__main__":
    main(**{"steps": 3})
"""
T5X = """
from jax import sharding
from jax.sharding import PartitionSpec
Spec = sharding.PartitionSpec
MODEL, DATA = "model", "data"
_MODEL: str = "model"
TABLE: list = [("mlp/wi", Spec(None, _MODEL)), ("mlp/wo", sharding.PartitionSpec(_MODEL)),
               (r"scale\\d", PartitionSpec())]
"""
NAMES_IN_PYTHON = """
CHOICES = (("relu", "gelu"), ("silu", "tanh"))
def standard_logical_axis_rules():
    return [("batch", "data"), ("vocab", "model"), ("embed", None), ("joined", ("model", "data"))]
"""
SOURCES: dict[str, tuple[str, list[tuple[str, Any]]]] = {
    "EasyLM": (EASYLM, [
        ("transformer/wte/embedding", P("mp", "fsdp")),
        ("attention/(wq|wk|wv)/kernel", P("fsdp", "mp")),
        ("feed_forward/w2/kernel", P(("mp", "sp"), None)), (".*", P(None)),
    ]),
    "other names": (T5X, [("mlp/wi", P(None, "model")), ("mlp/wo", P("model")), ("scale\\d", P())]),
    "T5X": (NAMES_IN_PYTHON, [
        ("batch", "data"), ("vocab", "model"), ("embed", None), ("joined", ("model", "data"))]),
    "dict": ("import jax\nrules = {'wq': jax.P('x'), '.*': jax.P(jax.P.UNCONSTRAINED)}",
             [("wq", P("x")), (".*", P(P.UNCONSTRAINED))]),
}  # fmt: skip


@pytest.mark.parametrize("label", SOURCES)
def test_a_file_of_python_source_holds_a_table(label, tmp_path):
    text, pairs = SOURCES[label]
    file = tmp_path / "config.py"
    file.write_text(text)
    # What its table is once it is run.
    scope = runpy.run_path(str(file))
    if label == "EasyLM":
        table = scope["LLaMAConfigurator"].get_partition_rules()
    elif label == "T5X":
        table = scope["standard_logical_axis_rules"]()
    else:
        table = scope.get("TABLE", scope.get("rules"))
    assert dict(table) == dict(pairs)
    assert sv.rules(file) == sv.rules(pairs)
    assert sv.rules(str(file)) == sv.rules(pairs)


def test_a_dict_of_haliax_is_a_table():
    hax = pytest.importorskip("haliax")
    mapping = {"embed": "data", "mlp": ("model", "expert"), "head": None}
    table = sv.rules(mapping)
    for names in (("embed", "mlp"), ("position", "head", "mlp")):
        axes = tuple(hax.Axis(name, 8) for name in names)
        wanted = hax.partitioning.pspec_for_axis(axes, mapping)
        assert sv.resolve(names, table).partition_spec == wanted
    w = hax.zeros((hax.Axis("embed", 8), hax.Axis("mlp", 8)))
    assert str(sv.audit({"w": w}, mapping, "data=4, model=2, expert=1")["w"].spec) == (
        "P('data', ('model', 'expert'))"
    )


def test_the_text_of_a_table_of_paths_is_read_back():
    rng = random.Random(1)
    letters = "ab/.*\\d'\"()[]|+-> →#,;{}P(é "
    for _ in range(300):
        pairs = [
            ("".join(rng.choices(letters, k=rng.randint(0, 9))),
             rng.choice([(), (None, "x"), (("x", "it's"), P.UNCONSTRAINED), ("a, b",)]))
            for _ in range(rng.randint(1, 4))
        ]  # fmt: skip
        table = sv.rules(dict(pairs), dialect="keras")
        assert sv.rules(table.text(), dialect="keras") == table


def test_objects_are_the_table():
    tuples = [("wte/embedding", ("mp", "fsdp")), (PATHS[1].pattern, [None, ["mp", "sp"]])]
    assert sv.rules([*tuples, (".*", None)], dialect="regex") == PATHS
    assert sv.rules(dict([*tuples, (".*", ())]), dialect="keras") == PATHS
    assert sv.rules(PATHS.pairs()) == PATHS
    assert sv.rules(*PATHS.pairs()) == PATHS
    assert sv.rules(PATHS) is PATHS
    assert sv.rules(PATHS.entries, dialect="regex") == PATHS
    assert sv.rules(iter(tuples), dialect="regex").entries == PATHS.entries[:2]
    assert isinstance(sv.rules([]), sv.Rules)


@pytest.mark.parametrize("dialect", ["regex", "keras"])
def test_a_table_made_for_a_dialect_is_read_with_it(dialect):
    table = sv.rules((".*kernel", ("data",)), dialect=dialect)
    found = sv.audit([("a/kernel", (8, 8))], table, MESH)
    assert (found.dialect.name, found.rules) == (dialect, table)
    assert sv.resolve("a/kernel", table).dialect.name == dialect
    assert sv.audit([("a/kernel", (8, 8))], table, MESH, dialect="regex").dialect.name == "regex"
    with pytest.raises(sv.ShardvizError, match="reads logical names"):
        sv.audit([("a/kernel", (8, 8))], table, MESH, dialect="nnx")
    with pytest.raises(sv.ShardvizError, match="reads logical names"):
        sv.audit([("a/kernel", (8, 8))], sv.rules(*PATHS.pairs()), MESH)


@pytest.mark.parametrize(("made_for", "given", "axis"), [
    (None, None, "data"), (None, "nnx", "model"), ("nnx", None, "model"), ("nnx", "linen", "data"),
])  # fmt: skip
def test_every_function_reads_a_table_of_names_as_it_was_made(made_for, given, axis):
    # nnx takes the last rule for a name, linen the first.
    table = sv.rules(("rows", "data"), ("rows", "model"), dialect=made_for)
    mesh, w = sv.mesh(data=2, model=4), sv.array("w", (8, 8), "rows _")
    keywords = {"dialect": given} if given else {}
    spec = sv.Spec.of(axis, None)
    made = sv.program(abs, w, mesh=mesh, rules=table, **keywords)
    replicated = mesh, [("rows", None)]
    assert made.requests[0].spec == sv.audit([w], table, mesh, **keywords).rows[0].spec == spec
    assert sv.layout(w, mesh=mesh, rules=table, **keywords).spec == spec
    assert sv.resolve(w.logical, table, mesh=mesh, **keywords).spec == spec
    assert sv.audit(made).rows[0].spec == spec
    moved = sv.reshard([w], (mesh, table), replicated, **keywords).bytes_moved
    assert moved == sv.reshard(made, None, replicated).bytes_moved
    assert moved == sv.reshard([w], (mesh, spec), replicated).bytes_moved
    if not given:
        for value in (w, {"w": w}, made):
            explorer = sv.explore(value, mesh=mesh, rules=table)
            assert explorer.session.program.requests[0].spec == spec


def test_a_layout_map_brings_its_mesh():
    os.environ.setdefault("KERAS_BACKEND", "jax")
    keras = pytest.importorskip("keras")
    devices = keras.distribution.DeviceMesh((1, 1), ("data", "model"), ["cpu:0"])
    layouts = keras.distribution.LayoutMap(devices)
    layouts["dense.*kernel"] = (None, "model")
    layouts[".*bias"] = keras.distribution.TensorLayout(("model",))
    found = sv.rules(layouts)
    assert isinstance(found, PathRules)
    assert found.mesh is not None
    assert found.mesh.shape == {"data": 1, "model": 1}
    assert found.text() == "'dense.*kernel' -> P(None, 'model')\n'.*bias' -> P('model')"
    for table in (layouts, found):
        audit = sv.audit([("dense/kernel", (8, 8)), ("norm", (8,))], table)
        assert (audit.mesh, audit.dialect.value) == (found.mesh, "keras")
        assert [row.problem for row in audit.rows] == [None, None]
    # EasyLM would find the pattern anywhere in the path; Keras matches all of it.
    assert not sv.resolve("my_dense/kernel", layouts).spec.axes
    with pytest.raises(sv.ShardvizError):
        sv.audit([("dense/kernel", (8, 8))], [("kernel", sv.Spec.of("data"))], "data=1")


RECORDS = sorted((Path(__file__).parents[2].parent / "shared/data/maxtext").glob("*.json"))


@pytest.mark.skipif(not RECORDS, reason="the folder shared/data/maxtext is not here")
@pytest.mark.parametrize("file", RECORDS, ids=lambda f: f.stem)
def test_records_of_maxtext_hold_their_rules(file):
    found = sv.rules(file)
    assert found == sv.rules([tuple(rule) for rule in json.loads(file.read_text())["rules"]])


#: label -> (the end of the file's name, its content)
WRONG_FILES: dict[str, tuple[str, str | bytes]] = {
    "python tag": (".yml", 'rules: !!python/object/apply:os.system ["true"]'),
    "alias of nothing": (".yml", "rules: *a"),
    "tab": (".yml", "rules:\n\t- [a, b]"),
    "empty": (".yml", ""),
    "typo": (".yml", "logical_axis_rule: []"),
    "a configuration": (".json", '{"model": "llama", "layers": 3}'),
    "number as axis": (".yml", "rules: [[a, [0x10]]]"),
    "date as axis": (".yml", "rules: [[a, 2020-01-01]]"),
    "ragged": (".yml", "rules: [[a, b, c]]"),
    "cut off": (".json", '{"rules": [["a", '),
    "json number": (".json", '[["a", 1.5]]'),
    "binary": (".yml", bytes(range(256))),
    "huge": (".yml", "a" * (MAX_TEXT + 1)),
    "no arrow": (".txt", "batch data"),
    "code": (".txt", "R = [('a', __import__('os').system('true'))]"),
    "comprehension": (".txt", "[(a, b) for a, b in x]"),
    "two tables": (".txt", "A = [('a', 'b')]\nB = [('c', 'd')]"),
    "no python": (".txt", "R = [("),
    "python of two tables": (".py", "A = [('a', P('b'))]\nB = [('c', P('d'))]"),
    "python that computes": (".py", "R = [('a', P(axes()))]"),
    "python with an unknown name": (".py", "R = [('a', P(AXIS))]"),
    "python that adds a variable": (".py", "A = [('a', P('b'))]\nR = A + more()"),
    "python that adds a list": (".py", "R = [('a', P('b'))] + more()"),
    "python that unpacks": (".py", "A = [('a', P('b'))]\nR = [*A, more()]"),
    "python that extends": (".py", "A = [('a', 'b')]\nA.extend(more())"),
    "python that adds in place": (".py", "rules = [('a', 'b')]\nrules += [('c', 'd')]"),
    "python without a table": (".py", "x = [1, 2]\nprint(x)"),
    "no python at all": (".py", "def f(:"),
    "big_vision": (".py", "c.sharding_strategy = [('.*', 'fsdp(axis=\"data\")')]"),
    "unpacked": (".txt", "R = list([*BASE, EXTRA])"),
    "a sum": (".txt", "R = ([('a', 'b')] if big else []) + EXTRA"),
    "a part": (".txt", "R = [('a', 'b'), *EXTRA]"),
}


def refused(call: Any) -> str:
    with pytest.raises(sv.ShardvizError) as caught:
        call()
    sentence = str(caught.value)
    assert sentence.isprintable(), ascii(sentence)
    assert 10 < len(sentence) <= 500
    assert sentence[-1] in ".?:", sentence
    return sentence


@pytest.mark.parametrize("label", WRONG_FILES)
def test_a_wrong_file_is_refused_in_one_sentence_with_its_name(label, tmp_path):
    ending, content = WRONG_FILES[label]
    file = tmp_path / f"t{ending}"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    sentence = refused(lambda: sv.rules(file))
    assert file.name in sentence
    refused(lambda: sv.audit([("w", (8, 8))], str(file), MESH))


def test_the_name_of_a_file_in_another_format_is_read_as_its_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("t.toml").write_text('title = "x"\n[rules]\nbatch = "data"')
    for file in ("t.toml", Path("t.toml")):
        sentence = refused(lambda file=file: sv.rules(file))
        assert sentence.startswith("'t.toml': ")
        assert sentence.endswith("are read from .yaml, .yml, .json, .txt or .py files.")


def test_what_is_no_file_is_refused_in_one_sentence(tmp_path):
    for path in (tmp_path, Path("/dev/zero"), tmp_path / "missing.yml", "missing.yml"):
        refused(lambda path=path: sv.rules(path))


ROWS = [sv.array("w", (8, 8), "batch mlp")]
SWAPPED = {
    "audit": lambda: sv.audit(NAMES, ROWS, MESH),
    "audit of a dict": lambda: sv.audit({"batch": "data"}, ROWS, MESH),
    "audit of text": lambda: sv.audit("batch -> data", [("w", (8, 8), "batch mlp")], MESH),
    "audit of rules alone": lambda: sv.audit(PATHS, mesh=MESH),
    "resolve": lambda: sv.resolve(NAMES, ("batch", "mlp")),
    "resolve of a dict": lambda: sv.resolve({"batch": "data"}, "batch mlp"),
    "resolve of a table of paths": lambda: sv.resolve(PATHS, "wte/embedding"),
}


@pytest.mark.parametrize("case", SWAPPED)
def test_rules_in_the_place_of_arrays_or_names_are_refused(case):
    assert refused(SWAPPED[case]).startswith("The first argument is a table of rules. Write sv.")


def test_wrong_rules_after_names_are_not_called_swapped():
    for names in ("batch mlp", ("batch", "mlp"), ["batch", None]):
        assert "Cannot read rule 1, 'batch'" in refused(lambda n=names: sv.resolve(n, "batch"))


@pytest.mark.parametrize("path", ["a\x00", "x" * 2000])
def test_a_wrong_path_is_refused_in_one_sentence(path):
    refused(lambda: sv.resolve(path, [(".*", ())], dialect="regex"))


def test_what_is_missing_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "yaml", None)
    file = tmp_path / "t.yml"
    file.write_text("rules: []")
    with pytest.raises(MissingPackage):
        sv.rules(file)


def test_nothing_of_a_file_runs(tmp_path):
    mark = tmp_path / "ran"
    code = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    for name, text in {
        "b.txt": f"R = [('a', {code})]",
        "c.yml": f'rules: [[a, !!python/object/apply:eval ["{code}"]]]',
    }.items():
        (tmp_path / name).write_text(text)
        with contextlib.suppress(sv.ShardvizError):
            read_rules(tmp_path / name)
    assert not mark.exists()
