from __future__ import annotations

import re
import textwrap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardviz.base.layout import Layout, lay_out, layout_from_indices
from shardviz.base.mesh import MeshSpec, make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.pictures import to_text
from tests.picture.ids_reader import read_ids
from tests.picture.strategies import layouts, meshes
from tests.picture.values import VALUES


def _layout(shape, spec: str, **axes: int) -> Layout:
    return lay_out(shape, Spec.parse(spec), make_mesh(**axes), "bfloat16")


GOLDENS = {
    "a mesh on two hosts": (
        make_mesh(data=4, model=2, processes=2),
        """
        mesh data=4, model=2 · 8 devices · 2 hosts
                 model 0   model 1
               ┌─────────┬─────────┐
        data 0 │ 0       │ 1       │ host 0
        data 1 │ 2       │ 3       │ host 0
        data 2 │ 4       │ 5       │ host 1
        data 3 │ 6       │ 7       │ host 1
               └─────────┴─────────┘
        """,
    ),
    "a huge mesh": (
        make_mesh(data=256, model=256, processes=8192),
        """
        mesh data=256, model=256 · 65,536 devices · 8,192 hosts
        ids in mesh order (model runs fastest): 0–65535
        hosts in mesh order: 0–8191; 8 devices each
        """,
    ),
    "a layout": (
        _layout((512, 2048), "None, model", data=4, model=2),
        """
        bf16[512, 2048] as P(None, 'model') on data=4, model=2
        2 blocks of [512, 1024], 1 MiB per device, 4 replicas
                0:1024          1024:2048
              ┌───────────────┬───────────────┐
        0:512 │ 0 · 2 · 4 · 6 │ 1 · 3 · 5 · 7 │
              └───────────────┴───────────────┘
        dimension 0 not split · dimension 1 → model
        """,
    ),
    "a strip": (
        _layout((64,), "(data, model)", data=4, model=2),
        """
        bf16[64] as P(('data', 'model')) on data=4, model=2
        8 blocks of [8], 16 B per device, 1 replica
          0:8   8:16   16:24   24:32   32:40   40:48   48:56   56:64
        ┌─────┬──────┬───────┬───────┬───────┬───────┬───────┬───────┐
        │ 0   │ 1    │ 2     │ 3     │ 4     │ 5     │ 6     │ 7     │
        └─────┴──────┴───────┴───────┴───────┴───────┴───────┴───────┘
        dimension 0 → data, model
        """,
    ),
    "a scalar": (
        _layout((), "", data=4),
        """
        bf16[] as P() on data=4
        1 block of [], 2 B per device, 4 replicas
        ┌───────────────┐
        │ 0 · 1 · 2 · 3 │
        └───────────────┘
        """,
    ),
    "a layout of many blocks": (
        _layout((512, 512), "model, data", data=16, pod=2, model=16),
        """
        bf16[512, 512] as P('model', 'data') on data=16, pod=2, model=16
        256 blocks of [32, 32], 2 KiB per device, 2 replicas
        device ids, block by block in row-major order, 2 devices per block: 0–496 step
          16, 1–497 step 16 … 15–511 step 16
        dimension 0 → model · dimension 1 → data
        """,
    ),
    "a sharding without a spec": (
        layout_from_indices((4,), "int8", {5: (slice(0, 2),), 9: (slice(2, 4),)}),
        """
        i8[4] as a sharding without a spec on device=2
        2 blocks of [2], 2 B per device, 1 replica
          0:2   2:4
        ┌─────┬─────┐
        │ 5   │ 9   │
        └─────┴─────┘
        dimension 0: 2 blocks
        """,
    ),
}


@pytest.mark.parametrize("name", GOLDENS)
def test_a_value_reads_as_it_should(name):
    value, golden = GOLDENS[name]
    wanted = textwrap.dedent(golden).strip("\n")
    text = to_text(value)
    # Goldens of long texts are their beginning.
    assert text[: len(wanted)] == wanted
    assert all(len(line) <= 80 for line in text.splitlines())


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("width", [1, 80])
def test_every_value_has_text_of_any_width(name, width):
    text = to_text(VALUES[name], width)
    assert text.strip()
    assert "\t" not in text


def test_what_core_can_explain_is_said_in_its_words():
    for name in ("resolution", "audit"):
        plain = " ".join(to_text(VALUES[name]).split())
        assert " ".join(VALUES[name].explain().split()) in plain


def _ids_in(body: str) -> list[int]:
    """Every id in the body of a text: in the cells of boxes, or after the colons of lines."""
    if "│" in body:
        cells = [c for line in body.split("\n") if "│" in line
                 for c in line.split("│")[1:-1]]  # fmt: skip
        return [v for c in cells if c.strip() for v in read_ids(c.strip())]
    lines = body.replace("\n  ", " ").split("\n")
    kept = [v for v in lines if not v.startswith("host")]
    return [v for line in kept for v in read_ids(re.split(r": | on ", line)[-1])]


@given(meshes(512), st.sampled_from([40, 80, 120]))
def test_no_id_of_a_mesh_is_lost_and_all_are_in_order(mesh: MeshSpec, width: int):
    head, _, body = to_text(mesh, width).partition(" host")
    assert f"{mesh.size:,} device" in head.replace("\n ", "")
    assert _ids_in(body.partition("\n")[2]) == mesh.device_ids.reshape(-1).tolist()


@given(layouts(512), st.sampled_from([40, 80, 120]))
def test_no_id_of_a_layout_is_lost(layout: Layout, width: int):
    text = to_text(layout, width)
    body = text.replace("\n  ", " ").split("\n", 2)[2]
    if layout.rank:
        body = body.rpartition("\ndimension 0")[0]
    found = _ids_in("\n".join(v for v in body.split("\n") if not re.match(r"dimension \d+ \[", v)))
    assert sorted(found) == np.sort(layout.device_ids).tolist()
