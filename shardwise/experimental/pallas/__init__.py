"""jax.experimental.pallas: kernels, which are interpreted everywhere; see README.md for the files.

A kernel is a function of Refs of blocks of arrays. `pallas_call` runs it for every step of a grid.
"""

from shardwise.base.unsupported import set_unsupported_names
from shardwise.compiler.arrays.dynamic_index import Slice, ds
from shardwise.experimental.pallas.arithmetic import reciprocal
from shardwise.experimental.pallas.block_spec import (
    BlockDim,
    Blocked,
    BlockSpec,
    BoundedSlice,
    Buffered,
    Element,
    RevisitMode,
    Squeezed,
    no_block_spec,
    squeezed,
)
from shardwise.experimental.pallas.control import loop, when
from shardwise.experimental.pallas.cost import CostEstimate, estimate_cost
from shardwise.experimental.pallas.grid_context import num_programs, program_id
from shardwise.experimental.pallas.grid_spec import GridSpec
from shardwise.experimental.pallas.hints import debug_print, delay, multiple_of
from shardwise.experimental.pallas.memory import MemoryRef, MemorySpace
from shardwise.experimental.pallas.pallas_call import pallas_call
from shardwise.experimental.pallas.scoped import empty, empty_like, empty_ref_like, run_scoped, with_scoped
from shardwise.experimental.pallas.semaphores import DeviceIdType, semaphore_read, semaphore_signal, semaphore_wait
from shardwise.experimental.pallas.sizes import align_to, cdiv, next_power_of_2, strides_from_shape
from shardwise.numpy import broadcast_to

__all__ = [
    "ANY",
    "HOST",
    "BlockDim",
    "BlockSpec",
    "Blocked",
    "BoundedSlice",
    "Buffered",
    "CostEstimate",
    "DeviceIdType",
    "Element",
    "GridSpec",
    "MemoryRef",
    "MemorySpace",
    "RevisitMode",
    "Slice",
    "Squeezed",
    "align_to",
    "broadcast_to",
    "cdiv",
    "debug_print",
    "delay",
    "ds",
    "dslice",
    "empty",
    "empty_like",
    "empty_ref_like",
    "estimate_cost",
    "loop",
    "multiple_of",
    "next_power_of_2",
    "no_block_spec",
    "num_programs",
    "pallas_call",
    "program_id",
    "reciprocal",
    "run_scoped",
    "semaphore_read",
    "semaphore_signal",
    "semaphore_wait",
    "squeezed",
    "strides_from_shape",
    "when",
    "with_scoped",
]

ANY = MemorySpace.ANY
HOST = MemorySpace.HOST
dslice = ds

_UNSUPPORTED = (
    *("CompilerParams", "Indirect", "core_map", "debug_check", "enable_debug_checks", "enable_poison_buffers"),
    *("get_global", "kernel", "lower_as_mlir", "pallas_call_p", "pallas_export_experimental", "run_state"),
    *("select_ref", "semaphore"),
)

set_unsupported_names(
    __name__,
    _UNSUPPORTED,
    "Use `pallas_call`, whose kernels are interpreted on one core: docs/pallas.md lists what they can use.",
    __all__,
)
