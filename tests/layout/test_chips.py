"""Chips: every figure has a source, figures agree with others that are published, errors help."""

from __future__ import annotations

import dataclasses

import pytest

from shardviz.base.errors import TargetError
from shardviz.hardware import chips
from shardviz.hardware.chips import CHIPS, NOT_PUBLISHED, SOURCES, chip_of_kind, find_chip
from shardviz.hardware.topology import Topology, even_topology

TPUS = [c for c in CHIPS.values() if c.platform == "tpu"]
GPUS = [c for c in CHIPS.values() if c.platform == "gpu"]
GPU_FIGURES = ("hbm_bandwidth", "peak_bf16", "peak_int8", "link_bandwidth", "network_bandwidth")
LATENCIES = ("hop_latency", "network_latency")
FIGURES = ("hbm_bytes", "pod_chips", *GPU_FIGURES, *LATENCIES, "collective_latency")


@pytest.mark.parametrize("chip", CHIPS.values(), ids=CHIPS)
def test_every_figure_names_its_source_and_no_other_does(chip):
    for figure in FIGURES:
        published = getattr(chip, figure) is not None
        assert published == (figure in chip.cited), figure
    assert bool(chip.pod) == ("pod" in chip.cited)
    assert set(chip.cited) <= {f.name for f in dataclasses.fields(chip)}


def test_sources_are_addresses_and_all_are_cited():
    assert {key for chip in CHIPS.values() for key in chip.cited.values()} == set(SOURCES)
    assert all("https://" in source for source in SOURCES.values())


TRAITS = {
    "tpu": {"axes": 2, "wrap": "full", "tensor_cores": 1},
    "gpu": {"driver": CHIPS["h100"].gpu},
}
ENTRIES = {
    "tpu": dict.fromkeys(("hbm_bytes", *GPU_FIGURES), (1, "xla")) | {"pod": ((8, 8), "xla")},
    "gpu": dict.fromkeys((*GPU_FIGURES, "collective_latency"), (1, "xla")),
}
MAKERS = {"tpu": chips._tpu, "gpu": chips._gpu}


def planted(platform, figures):
    """A made-up chip with these figures."""
    return MAKERS[platform]("p1", "P1", ("P1",), **TRAITS[platform], **figures)


@pytest.mark.parametrize(
    ("platform", "figure"), [(p, figure) for p, entry in ENTRIES.items() for figure in entry]
)
def test_a_figure_that_is_forgotten_or_has_no_source_is_refused(platform, figure):
    entry = ENTRIES[platform]
    assert figure in planted(platform, entry).cited
    assert figure not in planted(platform, entry | {figure: NOT_PUBLISHED}).cited
    forgotten = {name: value for name, value in entry.items() if name != figure}
    with pytest.raises(TypeError, match=figure):
        planted(platform, forgotten)
    with pytest.raises(TypeError):
        planted(platform, entry | {figure: 5e9})
    with pytest.raises(LookupError, match="rumour"):
        planted(platform, entry | {figure: (5e9, "rumour")})


# Google's "bidirectional ICI bandwidth per chip", in GB/s.
BOTH_WAYS = {"v5e": 400, "v5p": 1200, "v6e": 800, "7x": 1200}


@pytest.mark.parametrize("name", BOTH_WAYS)
def test_links_add_up_to_what_google_says_of_a_chip(name):
    chip = CHIPS[name]
    assert 2 * chip.ici_links * chip.link_bandwidth == BOTH_WAYS[name] * 1e9


# The tables of the scaling book, parts 2 and 12, which round.
BOOK = {
    "v3": (32e9, 9.0e11, 1.4e14, 1e11),
    "v4": (32e9, 1.2e12, 2.75e14, 4.5e10),
    "v5p": (96e9, 2.8e12, 4.59e14, 1e11),
    "v5e": (16e9, 8.1e11, 1.97e14, 5e10),
    "v6e": (32e9, 1.6e12, 9.2e14, 1e11),
    "a100": (80e9, 2.0e12, 3.1e14, 3e11),
    "h100": (80e9, 3.4e12, 9.9e14, 4.5e11),
    "h200": (141e9, 4.8e12, 9.9e14, 4.5e11),
    "b200": (192e9, 8.0e12, 2.3e15, 9e11),
}


@pytest.mark.parametrize("name", BOOK)
def test_figures_agree_with_the_scaling_book_as_far_as_it_rounds(name):
    chip = CHIPS[name]
    found = (chip.hbm_bytes, chip.hbm_bandwidth, chip.peak_bf16, chip.link_bandwidth)
    for ours, book in zip(found, BOOK[name], strict=True):
        assert ours == pytest.approx(book, rel=0.16 if name == "v3" else 0.08)


@pytest.mark.parametrize("chip", GPUS, ids=lambda c: c.name)
def test_a_gpu_has_what_its_compiler_asks_for_and_rates_that_agree(chip):
    wanted = {
        "threads_per_block_limit", "threads_per_warp", "shared_memory_per_block",
        "shared_memory_per_core", "threads_per_core_limit", "core_count", "fpus_per_core",
        "block_dim_limit_x", "block_dim_limit_y", "block_dim_limit_z", "memory_bandwidth",
        "l2_cache_size", "clock_rate_ghz", "device_memory_size", "shared_memory_per_block_optin",
        "registers_per_core_limit", "registers_per_block_limit", "compute_major", "compute_minor",
        "feature_extension", "device_description_str",
    }  # fmt: skip
    assert set(chip.gpu) == wanted
    assert chip.gpu["memory_bandwidth"] == pytest.approx(chip.hbm_bandwidth, rel=0.05)


@pytest.mark.parametrize("chip", TPUS, ids=lambda c: c.name)
def test_the_largest_machine_is_a_topology(chip):
    if not chip.pod_chips:
        pytest.skip("the size of its largest machine is not published")
    topology = Topology(chip, chip.pod) if chip.pod else even_topology(chip, chip.pod_chips)
    assert topology.chips == chip.pod_chips
    assert topology.devices == chip.pod_chips * chip.devices
    assert topology.jax_options["topology_name"].startswith(chip.libtpu_name)


def test_devices_share_the_memory_of_their_chip():
    assert CHIPS["7x"].device_bytes == 96 << 30
    assert CHIPS["v5p"].device_bytes == 95 << 30
    assert CHIPS["v2"].device_bytes is None


def test_peaks_go_by_type():
    assert CHIPS["v5e"].peak("int8") == 393e12
    assert CHIPS["v5e"].peak("float32") == CHIPS["v5e"].peak("bfloat16") == 197e12
    assert CHIPS["7x"].peak("int8") == 2307e12, "nothing is published for int8"


def test_devices_lead_to_their_chip():
    kinds = [kind for chip in CHIPS.values() for kind in chip.kinds]
    assert len(kinds) == len(set(kinds))
    assert all(chip_of_kind(kind) is chip for chip in CHIPS.values() for kind in chip.kinds)
    assert all(chip.kinds for chip in CHIPS.values())
    assert chip_of_kind("NVIDIA GeForce GTX 1080") is None


@pytest.mark.parametrize(
    ("name", "platform"), [("v5", "tpu"), ("h10", "gpu"), ("mi300", ""), ("v5e", "gpu")]
)
def test_an_unknown_chip_is_refused(name, platform):
    with pytest.raises(TargetError):
        find_chip(name, platform)
