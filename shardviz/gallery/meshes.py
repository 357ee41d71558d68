"""Meshes that people have: from one host to a million devices.

>>> names()[0], get("64 devices on 8 hosts: data=8, model=8").size
('8 devices: data=4, model=2', 64)
>>> describe("8 devices: data=8")
'Every device takes its share of the batch.'
"""

from __future__ import annotations

from shardviz.core.layout.mesh import MeshSpec, make_mesh
from shardviz.gallery.registry import Example, Registry

DEFAULT = "8 devices: data=4, model=2"

# Round eight chips whose ids count along two rows, one row per host.
_RING = (0, 1, 2, 3, 7, 6, 5, 4)
_HOSTS = (0, 0, 0, 0, 1, 1, 1, 1)

_REGISTRY: Registry[MeshSpec] = Registry(
    "mesh",
    Example(
        DEFAULT,
        "Two hosts of four devices: the batch over four, the weights over two.",
        lambda: make_mesh(data=4, model=2, processes=2),
    ),
    Example(
        "8 devices: data=8",
        "Every device takes its share of the batch.",
        lambda: make_mesh(data=8, processes=2),
    ),
    Example(
        "8 devices: data=2, fsdp=2, model=2",
        "A cube: three axes of two.",
        lambda: make_mesh(data=2, fsdp=2, model=2, processes=2),
    ),
    Example(
        "8 devices along a ring",
        "Ids count along two rows, the mesh goes round them: a device's id is not its position.",
        lambda: make_mesh(data=4, model=2, device_ids=_RING, processes=_HOSTS),
    ),
    Example(
        "16 devices: model=16",
        "One axis for tensor parallelism alone.",
        lambda: make_mesh(model=16, processes=4),
    ),
    Example(
        "64 devices on 8 hosts: data=8, model=8",
        "Eight hosts of eight devices; the model axis stays inside a host.",
        lambda: make_mesh(data=8, model=8, processes=8),
    ),
    Example(
        "64 devices, 5-D: data=2, fsdp=4, expert=2, sequence=2, tensor=2",
        "Five axes, as the configurations of large training codes have them.",
        lambda: make_mesh(data=2, fsdp=4, expert=2, sequence=2, tensor=2, processes=8),
    ),
    Example(
        "4,096 devices on 512 hosts: data=256, model=16",
        "A large training run.",
        lambda: make_mesh(data=256, model=16, processes=512),
    ),
    Example(
        "1,048,576 devices: data=1024, model=1024",
        "More than anybody has; a layout is arithmetic, so it is still there at once.",
        lambda: make_mesh(data=1024, model=1024),
    ),
)

names, get, describe = _REGISTRY.names, _REGISTRY.get, _REGISTRY.describe
