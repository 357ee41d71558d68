"""Functions that end a worker process, and texts that XLA printed when it ended one.

The functions run in a worker. The texts are from jaxlib 0.10.2 and 0.12.0.1, without most of their
stacks.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys


def segfault(folder: str) -> None:
    ctypes.string_at(0)


def check_failed(folder: str) -> None:
    print("F1122 03:44:06.391162   21499 fft_handler.cc:117] Check failed: size > 0 (0 vs. 0) ",
          file=sys.stderr)  # fmt: skip
    print("*** Check failure stack trace: ***\n    @     0x7fb69a420634  absl::Flush()")
    sys.stdout.flush()
    os.abort()


def killed(folder: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def left_without_cleaning_up(folder: str) -> None:
    os._exit(7)


def memory_error(folder: str) -> None:
    bytearray(1 << 60)


def number_of_this_process(folder: str) -> int:
    return os.getpid()


#: Each function, with its exit code and the text that the error quotes.
ENDS = {
    segfault: (-11, "Fatal Python error: Segmentation fault"),
    check_failed: (-6, "fft_handler.cc:117] Check failed: size > 0 (0 vs. 0)"),
    killed: (-9, ""),
    left_without_cleaning_up: (7, ""),
}

_FAULT_HANDLER = """\
Fatal Python error: {signal}

Thread 0x00007ffaf77ff6c0 (most recent call first):
  File "/shardviz/runs/backend/worker/child.py", line 321 in _exit_with
  File "/lib/python3.11/threading.py", line 982 in run

Current thread 0x00007ffb11e10b80 (most recent call first):
  File "/site-packages/jax/_src/compiler.py", line 353 in backend_compile_and_load
  File "<string>", line 8 in <module>

Current thread's C stack trace (most recent call first):
  Binary file "/lib/libpython3.14.so", at _Py_DumpStack+0x3b [0x7f]
  <truncated rest of calls>

Extension modules: jaxlib.cpu_feature_guard, numpy._core._multiarray_umath, {more} (total: 99)
"""
_MORE = ", ".join(f"scipy.linalg._number_{n}" for n in range(300))
_ABORTED = _FAULT_HANDLER.format(signal="Aborted", more=_MORE)

#: The printed text and the cause in it.
PRINTED = {
    "a Fourier transform over a split axis": (
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
        "I1122 03:44:06.091162   21499 cpu_client.cc:7] started\n"
        "F1122 03:44:06.391162   21499 fft_handler.cc:117] Check failed: size_per_partition % num_p"
        "artitions == 0 (1 vs. 0) \n*** Check failure stack trace: ***\n    @     0x7fb69a850245  "
        "xla::spmd::(anonymous namespace)::ShuffleWithinEachPartitionUsingOneHot()\n" + _ABORTED,
        "fft_handler.cc:117] Check failed: size_per_partition % num_partitions == 0 (1 vs. 0)",
    ),
    "a full folder": (
        "E1122 03:54:25.486315   29304 dump.cc:266] Could not write XLA debug data to /tmp/a.txt: O"
        "UT_OF_RANGE: /tmp/a.txt; File too large\n"
        "LLVM ERROR: IO failure on output stream: No space left on device\n" + _ABORTED,
        "LLVM ERROR: IO failure on output stream: No space left on device",
    ),
    "nothing that tells": ("first\nsecond\n\nthird\nfourth\n", "second / third / fourth"),
    "nothing": ("", ""),
    "characters that are none": ("F1122 03:00:00.1 1 a.cc:1] Check failed: \x1b[31m\x00", None),
    "a very long line": ("LLVM ERROR: " + "x" * 100_000, "LLVM ERROR: " + "x" * 288),
}
