"""`sv.topology` describes hardware that need not be attached."""

from __future__ import annotations

from shardviz.hardware.topology import Topology


def topology(text: str) -> Topology:
    """Describes a TPU slice or a GPU cluster: its chips, coordinates, hosts and links.

    Does not need jax.

    Args:
        text: the name of a described target: `"tpu:v5e:4x4"`, `"tpu:v5p:8x8x16"`,
            `"tpu:v5e:4x4*2"` for two slices, `"gpu:h100:2x8"` for two hosts of eight.

    Raises:
        ShardvizError: if the text is not a topology; the message shows valid forms.

    >>> import shardviz as sv
    >>> pod = sv.topology("tpu:v5p:8x8x16")
    >>> pod.size, pod.hosts, pod.coords[-1].tolist()
    (1024, 256, [7, 7, 15])
    """
    return Topology.parse(text)
