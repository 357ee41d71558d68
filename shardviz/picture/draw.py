from __future__ import annotations
from typing import Any
from shardviz.core.layout.mesh import MeshSpec
from shardviz.picture.draw_array import draw_layout_array, draw_array_spec
from shardviz.picture.draw_devices import draw_layout_devices, draw_mesh

def draw(value: Any, **options: Any):
    if isinstance(value, MeshSpec):
        return draw_mesh(value, **options)
    if options.pop("view", "array") == "devices":
        return draw_layout_devices(value, **options)
    return draw_layout_array(value, **options)
