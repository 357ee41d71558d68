"""Kinds of worker processes, their environment, and the limits of each call."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from shardviz.base.errors import TargetError
from shardviz.base.format import shown
from shardviz.programs.backend.worker.xla_flags import xla_flags

# Workers only get the jax settings that affect XLA's compilation, because the kernel
# lowers the program. Other settings (a number of devices, a transfer guard, a ban on
# compiling) would stop a worker.
_KEPT = frozenset(
    {
        "JAX_DEFAULT_MATMUL_PRECISION",
        "JAX_DEFAULT_PRNG_IMPL",
        "JAX_DISABLE_MOST_OPTIMIZATIONS",
        "JAX_ENABLE_REMAT_OPT_PASS",
        "JAX_ENABLE_X64",
        "JAX_EXEC_TIME_OPTIMIZATION_EFFORT",
        "JAX_MEMORY_FITTING_EFFORT",
        "JAX_MEMORY_FITTING_LEVEL",
        "JAX_OPTIMIZATION_LEVEL",
        "JAX_THREEFRY_PARTITIONABLE",
        "JAX_USE_SHARDY_PARTITIONER",
    }
)
# A worker has its own device count, and dumps to its own folder.
_NOT_PASSED = ("--xla_force_host_platform_device_count=", "--xla_dump_")
# A worker sees only CPU devices, because attached devices belong to the kernel. jax's
# disk cache is off, because a cached program isn't partitioned again and has no dump to
# read.
_COMMON = {
    "JAX_ENABLE_COMPILATION_CACHE": "false",
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "-1",
    # A worker compiles for described GPUs without needing CUDA libraries.
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}
_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",  # only cloud machines have the metadata server
    "TPU_LOG_DIR": "disabled",
    "TPU_STDERR_LOG_LEVEL": "2",
    "TPU_MIN_LOG_LEVEL": "2",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
# Numbers of simulated devices. These use 10 MB and 240 MB.
_COUNTS = (64, 512)


@dataclass(frozen=True)
class Settings:
    """The kind of a worker; all compiles of one kind share a process.

    Attributes:
        kind: `"cpu"`, `"tpu"` or `"gpu"`.
        devices: number of CPU devices to simulate.

    >>> Settings("cpu", 8).devices
    8
    """

    kind: str
    devices: int = 1

    @classmethod
    def of(cls, platform: str, needed: int, maximum: int) -> Settings:
        """Returns the kind of worker for a platform and a number of devices.

        A number of CPU devices is rounded up to 64, 512 or `maximum`, so that a worker
        can be reused for other meshes.

        >>> [Settings.of("cpu", needed, 1024).devices for needed in (2, 65, 513)]
        [64, 512, 1024]
        """
        if platform != "cpu":
            return cls(platform)
        for count in _COUNTS:
            if needed <= count:
                return cls(platform, count)
        return cls(platform, max(maximum, needed))

    def environment(self, variables: Mapping[str, str] | None = None) -> dict[str, str]:
        """Returns the environment variables of the worker.

        Args:
            variables: the variables to start from; None for those of this process.

        >>> Settings("cpu", 8).environment({"XLA_FLAGS": "--xla_a=1", "JAX_DISABLE_JIT": "1"})[
        ...     "XLA_FLAGS"
        ... ]
        '--xla_a=1 --xla_force_host_platform_device_count=8'
        """
        variables = os.environ if variables is None else variables
        passed_on = {
            n: v for n, v in variables.items() if not n.startswith("JAX_") or n in _KEPT
        }
        flags = [
            _quoted(f) for f in xla_flags(variables) if not f.startswith(_NOT_PASSED)
        ]
        flags.append(f"--xla_force_host_platform_device_count={self.devices}")
        extra = _TPU if self.kind == "tpu" else {}
        return {**passed_on, **_COMMON, **extra, "XLA_FLAGS": " ".join(flags)}


def _quoted(flag: str) -> str:
    """Quotes the value of a flag if it contains spaces, as XLA requires.

    >>> _quoted("--xla_a=1"), _quoted("--xla_b=c d")
    ('--xla_a=1', "--xla_b='c d'")
    """
    name, _, value = flag.partition("=")
    return f"{name}='{value}'" if re.search(r"\s", value) else flag


@dataclass(frozen=True)
class Limits:
    """Limits for a compile or run in a worker, which is ended when it exceeds them.

    Attributes:
        seconds: maximum duration of a call.
        memory: maximum bytes of memory that the worker may use; None for no limit.
        poll: seconds between polls.

    >>> Limits(memory=1 << 30).seconds
    3600.0
    """

    seconds: float = 3600.0
    memory: int | None = None
    poll: float = 0.02

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Limits:
        """Reads the limits from `SHARDVIZ_WORKER_SECONDS` and `SHARDVIZ_WORKER_GIB`.

        >>> Limits.of({"SHARDVIZ_WORKER_GIB": "1.5"}).memory
        1610612736
        """
        seconds = _number(environment, "SHARDVIZ_WORKER_SECONDS")
        memory = _number(environment, "SHARDVIZ_WORKER_GIB")
        return cls(
            seconds or cls.seconds,
            int(memory * (1 << 30)) if memory else None,
        )


def _number(environment: Mapping[str, str], name: str) -> float | None:
    text = environment.get(name, "").strip()
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) or float(text) <= 0:
        raise TargetError(f"{name} is a number above 0, such as 60; got {shown(text)}.")
    return float(text)
