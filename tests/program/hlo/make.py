"""Makes the modules that are kept here: `python make.py cpu | gpu | tpu:v5e:2x4 [programs]`.

For every program of `model.py` the module after XLA's partitioner and the final one, compiled for 8
simulated or described devices; no accelerator is needed. GPU wants a jax with its CUDA plugin, TPU
a jax with libtpu. The line numbers are those of `model.py`: change that, and make all.
"""

from __future__ import annotations

import gzip
import os
import re
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
# XLA prints this of GPU's collectives, and cannot parse it.
ALIASING = re.compile(r", output_to_operand_aliasing=\{(?:[^{}]|\{[^{}]*\})*\}")
H100 = """gpu_device_info { threads_per_block_limit: 1024 threads_per_warp: 32
 shared_memory_per_block: 49152 shared_memory_per_core: 233472 threads_per_core_limit: 2048
 core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
 block_dim_limit_z: 65535 memory_bandwidth: 3352320000000 l2_cache_size: 52428800
 clock_rate_ghz: 1.98 device_memory_size: 84942979072 shared_memory_per_block_optin: 232448
 cuda_compute_capability { major: 9 minor: 0 } registers_per_core_limit: 65536
 registers_per_block_limit: 65536 } platform_name: "CUDA"
 dnn_version_info { major: 9 minor: 10 } runtime_version { major: 13 minor: 0 }
 device_description_str: "NVIDIA H100" """


def main(target: str, only: list[str]) -> None:
    """Compiles the programs for a target and writes what came out."""
    os.environ.update(JAX_PLATFORMS="cpu", TPU_SKIP_MDS_QUERY="1", CUDA_VISIBLE_DEVICES="-1")
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
    import jax
    import numpy as np
    from jax.sharding import AxisType, Mesh

    jax.config.update("jax_num_cpu_devices", 8)
    platform, _, topology = target.partition(":")
    grid = np.array(devices(platform, topology)).reshape(4, 2)
    mesh = Mesh(grid, ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    with tempfile.TemporaryDirectory() as folder:
        # The modules name the file, so it stands where no one's name is in its path.
        source = (HERE / "model.py").read_text()
        space: dict = {"__file__": "/home/me/model.py"}
        exec(compile(source, "/home/me/model.py", "exec"), space)  # noqa: S102  our own file
        programs = space["Programs"](mesh)
        for name in only or [n for n in vars(space["Programs"]) if n[0] != "_" and len(n) > 1]:
            make(name, platform, topology, getattr(programs, name), Path(folder) / name)


def devices(platform: str, topology: str) -> list:
    """Eight devices, simulated or described."""
    import jax
    from jax.experimental import topologies

    if platform == "cpu":
        return jax.devices()
    if platform == "tpu":
        found = topologies.get_topology_desc(platform="tpu", topology_name=topology)
    else:
        found = topologies.get_topology_desc(platform="cuda", target_config=H100, topology="1x1x8")
    return found.devices


def make(name: str, platform: str, topology: str, program, folder: Path) -> None:
    """One program's modules."""
    import jax
    from jaxlib import _hlo

    fn, args = program()
    platforms = ({"gpu": "cuda"}.get(platform, platform),)
    options: dict[str, str | bool] = {"xla_dump_to": str(folder), "xla_dump_hlo_pass_re": "spmd"}
    try:
        lowered = jax.jit(fn).trace(*args).lower(lowering_platforms=platforms)
        compiled = lowered.compile(compiler_options=options)
    except (NotImplementedError, RuntimeError) as error:
        print(f"{name}: none for {platform}: {str(error).splitlines()[0][:90]}")
        return
    after = sorted(folder.glob("*.after_*spmd-partitioning.*"))
    texts = {"compiled": compiled.as_text(), "partitioned": after[-1].read_text()}
    version = HERE / f"jax-{'.'.join(jax.__version__.split('.')[:3])}"
    chip = topology.partition(":")[0].replace("v5e", "") if platform == "tpu" else ""
    for stage, text in texts.items():
        # As text, since in a serialized module no path can be replaced.
        text = text.replace(str(HERE), "/home/me").replace(sys.prefix, "/venv")
        text = ALIASING.sub("", text)
        module = _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
        kept = version / f"{platform}{chip}-{name}-{stage}.pb.gz"
        kept.write_bytes(gzip.compress(module, mtime=0))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
