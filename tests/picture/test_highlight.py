"""What belongs to what in the page, as plain loops have it: blocks of devices, ids, hosts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from shardviz.explorer import html_page
from tests.picture.javascript import run_script

MODULE = Path(html_page.HERE / "highlight.js")
_SCRIPT = """
import { Highlight } from %s;
import { readFileSync } from "node:fs";
const answers = JSON.parse(readFileSync(0, "utf8")).map(({ sizes, ids, hosts, strides }) => {
  const highlight = new Highlight();
  highlight.setMesh(sizes, Int32Array.from(ids), Int32Array.from(hosts));
  highlight.setArrays([{ strides, blocks: 1 }]);
  const numbers = (found) => found && [...found];
  return {
    groups: numbers(highlight.groups(0)),
    positions: ids.map((id) => highlight.positionOf(id)),
    hosts: highlight.hostCount,
  };
});
console.log(JSON.stringify(answers));
"""


def ask_page(cases: list[dict]) -> list[dict]:
    return run_script(_SCRIPT % json.dumps(MODULE.as_uri()), cases)


def case(seed: int, spread: int) -> dict:
    """A random mesh with ids below `spread` times its size, and an array split over some axes."""
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 5, random.integers(1, 5))
    count = int(sizes.prod())
    ids = random.permutation(spread * count)[:count] if spread else np.arange(count)
    strides = np.where(random.random(len(sizes)) < 0.6, random.integers(1, 9, len(sizes)), 0)
    return {
        "sizes": sizes.tolist(),
        "ids": ids.tolist(),
        "hosts": (random.integers(0, 4, count) * max(spread, 1)).tolist(),
        "strides": strides.tolist(),
    }


def test_blocks_ids_and_hosts_are_those_of_plain_loops():
    cases = [case(seed, spread) for spread in (0, 1, 3, 1000) for seed in range(25)]
    for made, answer in zip(cases, ask_page(cases), strict=True):
        coordinates = np.indices(made["sizes"]).reshape(len(made["sizes"]), -1)
        groups = (np.array(made["strides"])[:, None] * coordinates).sum(axis=0)
        assert answer["groups"] == groups.tolist()
        assert answer["positions"] == list(range(len(groups)))
        assert answer["hosts"] == len(set(made["hosts"]))
