"""Layers in the order in which people count them, whatever order their arrays have."""

import json
from pathlib import Path

from shardviz import widgets
from tests.picture.javascript import run_script

ROWS = Path(widgets.__file__).parent / "static" / "model_rows.js"
_SCRIPT = """
import { readFileSync } from "node:fs";
const { entries, sortedRows, tree, treeRows } = await import(%s);
const paths = JSON.parse(readFileSync(0, "utf8"));
const kinds = paths.map(() => 0);
const some = entries({ paths, kinds, folds: [], partners: [], words: "" }, false);
const kindOf = () => ({ short: "", spec: "", dims: [], bytes: 1, waste: 0 });
const labels = (rows) => rows.map((row) => row.label);
console.log(JSON.stringify({
  tree: labels(treeRows(tree(some).root, new Set())),
  bytes: labels(sortedRows(some, kindOf, "bytes")),
  name: labels(sortedRows(some, kindOf, "name")),
  leaves: some.map((entry) => entry.leaf),
}));
"""


def orders(paths: list[str]) -> dict[str, list]:
    return run_script(_SCRIPT % json.dumps(ROWS.as_uri()), paths)


def test_layers_are_counted_in_every_order():
    paths = sorted(f"layers_{n}/mlp/kernel" for n in range(12))  # as JAX has the keys of a dict
    counted = [f"layers_{n}/mlp/kernel" for n in range(12)]
    found = orders(paths)
    assert found["tree"] == found["bytes"] == found["name"] == counted
    assert [paths[leaf] for leaf in found["leaves"]] == counted, "each keeps its own numbers"


def test_other_names_keep_their_places():
    paths = ["z", "block10/w", "block9/w", "a", "block10/b", "block9/b"]
    found = orders(paths)
    assert found["bytes"] == ["z", "block9/w", "block10/w", "a", "block9/b", "block10/b"]
    assert found["name"] == ["a", "block9/b", "block9/w", "block10/b", "block10/w", "z"]
