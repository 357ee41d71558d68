"""Layers in the order in which people count them, whatever order their arrays have."""

import json
from pathlib import Path

from shardviz import explorer
from tests.picture.javascript import run_script

ROWS = Path(explorer.__file__).parent / "static" / "model_rows.js"
_SCRIPT = """
import { readFileSync } from "node:fs";
const { entries, sortedRows, tree, treeRows } = await import(%s);
const paths = JSON.parse(readFileSync(0, "utf8"));
const kinds = paths.map(() => 0);
const some = entries({ paths, kinds, folds: [], partners: [], words: "" }, false);
const kindOf = () => ({ short: "", spec: "", dims: [], bytes: 1, copies: 0 });
const labels = (rows) => rows.map((row) => row.label);
console.log(JSON.stringify({
  tree: labels(treeRows(tree(some, []).root, new Set())),
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
