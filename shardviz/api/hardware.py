"""Public functions for hardware: described topologies, and the targets to compile for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardviz.api.conversion import reads_arguments
from shardviz.core.errors import import_optional

if TYPE_CHECKING:
    from shardviz.core.hardware.topology import Topology
    from shardviz.core.program.target import Targets


@reads_arguments
def topology(text: str) -> Topology:
    """A slice of TPUs or a cluster of GPUs: chips, coordinates, hosts, links. Needs no jax.

    Args:
        text: as a target is written: `"tpu:v5e:4x4"`, `"tpu:v5p:8x8x16"`, `"tpu:v5e:4x4*2"` for
            two slices, `"gpu:h100:2x8"` for two hosts of eight.

    Raises:
        ShardvizError: with what could not be read, and how it is written.

    >>> pod = topology("tpu:v5p:8x8x16")
    >>> pod.size, pod.hosts, pod.coords[-1].tolist()
    (1024, 256, [7, 7, 15])
    """
    from shardviz.core.hardware.topology import Topology

    return Topology.parse(text)


def targets() -> Targets:
    """What a program can be compiled for or run on here, in words.

    >>> len(targets()) >= 1
    True
    """
    return import_optional("shardviz.core.backend.targets", "sv.targets", "jax").targets()
