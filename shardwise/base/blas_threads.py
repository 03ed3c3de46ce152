"""Threads of the BLAS library that LAPACK calls.

jaxlib's LAPACK routines call scipy's BLAS, from one thread per device, all at the same time. OpenBLAS has one thread
pool per process. Callers wait for it in busy loops, so 8 virtual devices on a few cores take minutes where they need
seconds, and XLA ends a process in which a device reaches a collective 40 s after the others.
"""

from functools import cache
from typing import Any

from shardwise.base.lazy import lazy_module

_threadpoolctl = lazy_module("threadpoolctl")  # 2.6 ms, and only programs that call LAPACK need it

# numpy's wheels bring a BLAS of their own, which no device calls.
_NUMPY_FOLDERS = ("numpy.libs", "numpy/.dylibs")


@cache
def run_blas_in_calling_thread() -> None:
    """Let each BLAS call of scipy run in the thread that makes it, without a thread pool.

    The limit holds for this process, also for direct calls of scipy. numpy's own BLAS keeps its threads.
    """
    for library in blas_libraries():
        library.set_num_threads(1)


def blas_libraries() -> list[Any]:
    """Return threadpoolctl's controllers of the loaded BLAS libraries that LAPACK routines may call."""
    controllers = _threadpoolctl.ThreadpoolController().select(user_api="blas").lib_controllers
    return [library for library in controllers if not any(folder in library.filepath for folder in _NUMPY_FOLDERS)]
