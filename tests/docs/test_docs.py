"""What the pages say is so: their code runs, their tables agree with flax, their links lead on."""

import json
import re
from dataclasses import fields

import flax
import pytest
from flax.core import spmd

from shardviz.__main__ import BROKEN, OK, WRONG
from shardviz.advise.contracts import Expectation
from shardviz.axis_rules import verdicts
from shardviz.axis_rules.matching import without_size_one
from shardviz.axis_rules.resolution import resolve
from shardviz.axis_rules.rules import Rules
from shardviz.axis_rules.verdicts import Deciding, Outcome, Verdict
from shardviz.base.mesh import make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.compiled.comparison import CHANGES
from shardviz.hardware.chips import CHIPS, SOURCES
from tests.docs.pages import PAGES, ROOT, Block, blocks, table
from tests.docs.test_fresh import PAGES as FRESH

TARGETS = (ROOT / "docs" / "targets.md").read_text()
COLLECTIVES = (ROOT / "docs" / "collectives.md").read_text()
SEMANTICS = (ROOT / "docs" / "semantics.md").read_text()
PATH_TABLES = (ROOT / "docs" / "path-tables.md").read_text()
FIELDS = {field.name for field in fields(Expectation)}
NAMES = {page: str(page.relative_to(ROOT)) for page in PAGES}


@pytest.mark.parametrize("page", [p for p in PAGES if NAMES[p] not in FRESH], ids=NAMES.get)
def test_code_on_the_page_runs(page, eight_devices, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # pages may save files
    namespace = {"__name__": "__main__"}
    for block in blocks(NAMES[page], page.read_text()):
        block.run(namespace)


@pytest.mark.parametrize("code", ["assert 1 == 2\n", ">>> 1 + 1\n3\n", ">>> undefined\n1\n"])
def test_code_that_is_wrong_fails(code):
    with pytest.raises(AssertionError):
        Block("page.md", 1, code).run({})


@pytest.mark.parametrize("page", PAGES, ids=NAMES.values())
def test_links_inside_the_project_lead_somewhere(page):
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text())
    targets += re.findall(r'(?:src|srcset)="(?!https?:)([^"]+)"', page.read_text())
    missing = [t for t in targets if not (page.parent / t).exists()]
    assert missing == []


def test_the_page_lists_every_outcome_and_who_decides():
    rows = {}
    for page, head in ((SEMANTICS, "outcome"), (PATH_TABLES, "verdict on a pattern")):
        rows |= {row[0]: row[1] for row in table(page, head)}
    kinds = [v for v in vars(verdicts).values() if isinstance(v, type) and issubclass(v, Verdict)]
    kinds = [kind for kind in kinds if "outcome" in vars(kind)]
    decides = {v.outcome.value: "yes" if issubclass(v, Deciding) else "no" for v in kinds}
    assert set(decides) == {outcome.value for outcome in Outcome}
    assert rows == decides


def worked_example():
    rules = Rules.parse(re.search(r'sv\.rules\("""\n(.*?)\.\.\. """\)', SEMANTICS, re.DOTALL)
                        .group(1).replace("... ", ""))  # fmt: skip
    return rules, table(SEMANTICS, "logical names")


@pytest.mark.parametrize("column", ["linen", "nnx", "maxtext"])
def test_dialects_side_by_side_are_what_we_resolve(column):
    rules, rows = worked_example()
    assert len(rows) == 5
    mesh = make_mesh(data=8, model=1)
    at = ["linen", "nnx", "maxtext"].index(column) + 1
    for row in rows:
        found = resolve(row[0].strip("`"), rules, mesh=mesh, dialect=column)
        assert f"`{found.spec}`" == row[at], row[0]


def test_dialects_side_by_side_are_what_flax_resolves():
    rules, rows = worked_example()
    mesh = make_mesh(data=8, model=1)
    for names, linen, nnx, maxtext in rows:
        logical = tuple(None if n == "_" else n for n in names.strip("`").split())
        theirs = flax.linen.logical_to_mesh_axes(logical, rules.pairs())
        assert f"`{theirs}`" == linen
        # MaxText calls linen's and then drops axes of size 1.
        assert f"`{without_size_one(Spec.of(*theirs), mesh)}`" == maxtext
        assert f"`{spmd.get_pspec(logical, rules.pairs())}`" == nnx


def test_the_figures_of_chips_on_the_page_are_those_that_the_rooflines_use():
    fields = {
        "memory": ("hbm_bytes", "GiB", 2**30),
        "memory bandwidth": ("hbm_bandwidth", "TB/s", 1e12),
        "bf16 peak": ("peak_bf16", "TFLOP/s", 1e12),
        "link, one way": ("link_bandwidth", "GB/s", 1e9),
        "network": ("network_bandwidth", "GB/s", 1e9),
        "latency of a link": ("hop_latency", "µs", 1e-6),
        "of the network": ("network_latency", "µs", 1e-6),
    }
    rows = {row[0]: dict(zip(fields, row[1:], strict=True)) for row in table(TARGETS, "chip")}
    assert set(rows) == set(CHIPS)
    for chip in CHIPS.values():
        for column, (field, unit, scale) in fields.items():
            value, said = getattr(chip, field), rows[chip.name][column]
            if value is None:
                assert said == "not published", (chip.name, column)
                continue
            assert said == f"{value / scale:,.4g} {unit} [{chip.cited[field]}]"
            assert f"- `{chip.cited[field]}`: {SOURCES[chip.cited[field]]}" in TARGETS


def test_the_lock_on_the_page_is_that_of_its_program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "contracts.md"
    namespace = {"__name__": "__main__"}
    for block in blocks("model.py", page.read_text())[:1]:
        block.run(namespace)
    found = json.loads(namespace["sv"].lock(namespace["step"]).text)
    shown = json.loads(re.search(r"```json\n(.*?)```", page.read_text(), re.DOTALL)[1])
    assert shown.pop("made_with").keys() == found.pop("made_with").keys()
    assert shown == found


def test_the_page_lists_every_way_to_ask_and_every_exit_code():
    page = (ROOT / "docs" / "contracts.md").read_text()
    asked = {re.match(r"`\.(\w+)\(", row[0])[1] for row in table(page, "method")}
    methods = {name for name in vars(Expectation) if name[0] != "_" and name not in FIELDS}
    assert asked == methods - {"locked"}
    assert [int(row[0]) for row in table(page, "exit code")] == [OK, BROKEN, WRONG]


def test_the_page_lists_every_kind_of_change_between_stages():
    rows = table(COLLECTIVES, "between partitioned and compiled")
    assert sorted(row[0] for row in rows) == sorted(CHANGES)
