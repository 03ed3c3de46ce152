"""Functions that are one kernel of our own on NVIDIA GPUs, and a program of other ops elsewhere.

XLA fuses most of a program well. These functions are those where it passes over memory more often than needed. They are
ops like any other: they are differentiated, vmapped, sharded and explained. The setting `own_kernels` turns the kernels
off, and the functions compute the same with other ops. `triton_kernel` makes such a function from a kernel of yours.

The public names are listed in `__init__.pyi`.
"""

from shardwise.base.lazy import lazy_namespace

__all__, __getattr__, __dir__ = lazy_namespace(__name__, __file__)
