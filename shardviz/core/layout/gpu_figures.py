"""The figures that describe a GPU to XLA's compiler, field by field.

They are the fields of `gpu_device_info` in XLA's `GpuTargetConfigProto`, as OpenXLA publishes them
for its own compiler in `xla/backends/gpu/target_config/specs` (`a100_sxm_80`, `h100_sxm`, `h200`
and `b200.txtpb`): what the driver of such a GPU reports. Sizes are in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

# The same for every GPU here.
_COMMON: Mapping[str, int | float | str] = {
    "threads_per_block_limit": 1024,
    "threads_per_warp": 32,
    "shared_memory_per_block": 49152,
    "threads_per_core_limit": 2048,
    "block_dim_limit_x": 2147483647,
    "block_dim_limit_y": 65535,
    "block_dim_limit_z": 65535,
    "registers_per_core_limit": 65536,
    "registers_per_block_limit": 65536,
}

GPU_FIGURES: Mapping[str, Mapping[str, int | float | str]] = {
    "a100": {
        **_COMMON,
        "shared_memory_per_core": 167936,
        "shared_memory_per_block_optin": 166912,
        "core_count": 108,
        "fpus_per_core": 64,
        "memory_bandwidth": 2039040000000,
        "l2_cache_size": 41943040,
        "clock_rate_ghz": 1.41,
        "device_memory_size": 85100068864,
        "compute_major": 8,
        "compute_minor": 0,
        "feature_extension": "NONE",
        "device_description_str": "NVIDIA A100-SXM4-80GB",
    },
    "h100": {
        **_COMMON,
        "shared_memory_per_core": 233472,
        "shared_memory_per_block_optin": 232448,
        "core_count": 132,
        "fpus_per_core": 128,
        "memory_bandwidth": 3352320000000,
        "l2_cache_size": 52428800,
        "clock_rate_ghz": 1.98,
        "device_memory_size": 84942979072,
        "compute_major": 9,
        "compute_minor": 0,
        "feature_extension": "ACCELERATED_FEATURES",
        "device_description_str": "NVIDIA H100 80GB HBM3",
    },
    "h200": {
        **_COMMON,
        "shared_memory_per_core": 233472,
        "shared_memory_per_block_optin": 232448,
        "core_count": 132,
        "fpus_per_core": 128,
        "memory_bandwidth": 4800000000000,
        "l2_cache_size": 52428800,
        "clock_rate_ghz": 1.98,
        "device_memory_size": 151397597184,
        "compute_major": 9,
        "compute_minor": 0,
        "feature_extension": "ACCELERATED_FEATURES",
        "device_description_str": "NVIDIA H200 141GB HBM3e",
    },
    "b200": {
        **_COMMON,
        "shared_memory_per_core": 233472,
        "shared_memory_per_block_optin": 232448,
        "core_count": 148,
        "fpus_per_core": 128,
        "memory_bandwidth": 7672320000000,
        "l2_cache_size": 132644864,
        "clock_rate_ghz": 1.965,
        "device_memory_size": 191514411008,
        "compute_major": 10,
        "compute_minor": 0,
        "feature_extension": "ACCELERATED_FEATURES",
        "device_description_str": "NVIDIA B200",
    },
}
