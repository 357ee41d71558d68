"""Chips: every figure has a source, figures agree with others that are published, errors help."""

from __future__ import annotations

import dataclasses

import pytest

from shardviz.base.errors import TargetError
from shardviz.hardware.chips import CHIPS, chip_of_kind, find_chip
from shardviz.hardware.topology import Topology
from shardviz.hardware.words.hardware import SOURCES

TPUS = [c for c in CHIPS.values() if c.platform == "tpu"]
GPUS = [c for c in CHIPS.values() if c.platform == "gpu"]
FIGURES = (
    "hbm_bytes",
    "hbm_bandwidth",
    "peak_bf16",
    "peak_int8",
    "link_bandwidth",
    "network_bandwidth",
    "pod_chips",
)


@pytest.mark.parametrize("chip", CHIPS.values(), ids=CHIPS)
def test_every_figure_names_its_source_and_no_other_does(chip):
    for figure in FIGURES:
        known = getattr(chip, figure) is not None
        assert known == (figure in chip.cited), figure
        if known:
            assert "https://" in SOURCES[chip.cited[figure]]
    assert set(chip.cited) <= {f.name for f in dataclasses.fields(chip)}


def test_every_source_is_cited():
    assert {key for chip in CHIPS.values() for key in chip.cited.values()} == set(SOURCES)


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
    shape = chip.pod or (16, 24, 24)
    assert Topology(chip, shape).chips == chip.pod_chips
    assert Topology(chip, shape).devices == chip.pod_chips * chip.devices


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
