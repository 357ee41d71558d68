"""Leaves with their shardings, in the rendering of the real treescope."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv

treescope = pytest.importorskip("treescope")
# The first rendering reads every public name of numpy, deprecated ones too.
pytestmark = pytest.mark.filterwarnings("ignore:The chararray class:DeprecationWarning")


@pytest.fixture
def tree(eight_devices):
    """A tree with arrays that are split, replicated, on one device, and of no device."""
    mesh = Mesh(np.array(eight_devices).reshape(4, 2), ("data", "model"))
    split = NamedSharding(mesh, P("data", "model"))
    return {
        "split": jax.device_put(np.ones((8, 4), "float32"), split),
        "shape": jax.ShapeDtypeStruct((16, 4), "float32", sharding=NamedSharding(mesh, P())),
        "single": jax.device_put(np.ones(3, "float32"), eight_devices[0]),
        "numpy": np.ones(3),
        "text": "w",
    }


def test_leaves_on_several_devices_have_a_picture_and_no_others(tree):
    pictured = {name for name, leaf in tree.items() if sv.treescope_leaf(leaf) is not None}
    assert pictured == {"split", "shape"}


def test_the_pictures_are_in_the_page_where_they_are_switched_on(tree):
    with treescope.active_autovisualizer.set_scoped(sv.treescope_leaf):
        page = treescope.render_to_html(tree, compressed=False)
    assert page.count("data:image/png;base64") == 2
    assert sv.layout(tree["split"]).shard_shape == (2, 2)
    assert "8 blocks of [2, 2]" in page
    assert "data:image/png" not in treescope.render_to_html(tree, compressed=False)
