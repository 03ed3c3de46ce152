"""jax.experimental.pallas.tpu: what kernels for TPUs use. They are interpreted, on TPUs too."""

from typing import Any

from shardwise.api.ref import RefLike
from shardwise.base.lazy import Deprecated, set_public_names
from shardwise.base.unsupported import set_unsupported_names
from shardwise.experimental.pallas.arithmetic import bitcast, pack_elementwise, roll, unpack_elementwise
from shardwise.experimental.pallas.async_copy import (
    async_copy,
    make_async_copy,
    sync_copy,
)
from shardwise.experimental.pallas.compiler_params import (
    GridDimensionSemantics,
    InterpretParams,
    SideEffectType,
    force_tpu_interpret_mode,
    reset_tpu_interpret_mode_state,
    set_tpu_interpret_mode,
)
from shardwise.experimental.pallas.compiler_params import TpuCompilerParams as CompilerParams
from shardwise.experimental.pallas.grid_spec import PrefetchScalarGridSpec
from shardwise.experimental.pallas.hints import touch, trace_value, with_memory_space_constraint
from shardwise.experimental.pallas.masked import load_masked, store_masked
from shardwise.experimental.pallas.memory import SemaphoreType
from shardwise.experimental.pallas.memory import TpuMemorySpace as MemorySpace
from shardwise.experimental.pallas.pipeline import emit_pipeline
from shardwise.experimental.pallas.random_bits import prng_random_bits, prng_seed, stochastic_round
from shardwise.typing import ArrayLike

__all__ = [
    "ARBITRARY",
    "CMEM",
    "CORE_PARALLEL",
    "HBM",
    "PARALLEL",
    "SEMAPHORE",
    "SMEM",
    "SUBCORE_PARALLEL",
    "VMEM",
    "VMEM_SHARED",
    "CompilerParams",
    "GridDimensionSemantics",
    "InterpretParams",
    "MemorySpace",
    "PrefetchScalarGridSpec",
    "SemaphoreType",
    "SideEffectType",
    "async_copy",
    "bitcast",
    "emit_pipeline",
    "force_tpu_interpret_mode",
    "load",
    "make_async_copy",
    "pack_elementwise",
    "prng_random_bits",
    "prng_seed",
    "reset_tpu_interpret_mode_state",
    "roll",
    "set_tpu_interpret_mode",
    "stochastic_round",
    "store",
    "sync_copy",
    "touch",
    "trace_value",
    "unpack_elementwise",
    "with_memory_space_constraint",
]

PARALLEL = GridDimensionSemantics.PARALLEL
CORE_PARALLEL = GridDimensionSemantics.CORE_PARALLEL
SUBCORE_PARALLEL = GridDimensionSemantics.SUBCORE_PARALLEL
ARBITRARY = GridDimensionSemantics.ARBITRARY

CMEM = MemorySpace.CMEM
SMEM = MemorySpace.SMEM
VMEM = MemorySpace.VMEM
VMEM_SHARED = MemorySpace.VMEM_SHARED
HBM = MemorySpace.HBM
SEMAPHORE = MemorySpace.SEMAPHORE


def load(ref: RefLike, *, mask: ArrayLike | None = None) -> Any:
    """Return the elements of a Ref.

    Args:
        ref: a Ref, or a view such as `ref.at[pl.ds(i, 8)]`.
        mask: which elements are needed; the others are undefined.

    Returns:
        An array.

    Raises:
        TypeError: if the mask does not fit.

    Example:
        >>> pallas.tpu.load(jax.new_ref(jnp.arange(2)))
        Array([0, 1], dtype=int32)
    """
    return load_masked(ref, mask)


def store(ref: RefLike, val: ArrayLike, *, mask: ArrayLike | None = None) -> None:
    """Write the elements of a Ref.

    Args:
        ref: a Ref, or a view such as `ref.at[pl.ds(i, 8)]`.
        val: the new elements.
        mask: which elements to write; by default all.

    Raises:
        TypeError: if the mask or the elements do not fit.

    Example:
        >>> ref = jax.new_ref(jnp.arange(2))
        >>> pallas.tpu.store(ref, jnp.array([5, 6]), mask=jnp.array([True, False]))
        >>> ref[...]
        Array([5, 1], dtype=int32)
    """
    store_masked(ref, val, mask)


_UNSUPPORTED = (
    "BufferType",
    "BufferedRef",
    "BufferedRefBase",
    "ChipVersion",
    "CoreType",
    "LoweringException",
    "Tiling",
    "TpuInfo",
    "async_remote_copy",
    "core_barrier",
    "create_tensorcore_mesh",
    "dma_semaphore",
    "einshape",
    "emit_pipeline_with_allocations",
    "get_barrier_semaphore",
    "get_tpu_info",
    "get_tpu_info_for_chip",
    "is_tpu_device",
    "make_async_remote_copy",
    "matmul_acc_lhs",
    "matmul_pop",
    "matmul_push_rhs",
    "run_on_first_core",
    "sample_block",
    "stateful_bernoulli",
    "stateful_bits",
    "stateful_normal",
    "stateful_uniform",
    "to_pallas_key",
)

set_unsupported_names(
    __name__,
    _UNSUPPORTED,
    "Kernels are interpreted on one core of one device. To communicate, use the collectives of `lax` in `shard_map` "
    "around the kernel; docs/pallas.md lists what kernels can use.",
    __all__,
)
_SEMAPHORES = ("DeviceIdType", "semaphore_read", "semaphore_signal", "semaphore_wait")
set_public_names(
    __name__,
    __all__,
    {
        "repeat": Deprecated("shardwise.experimental.pallas.arithmetic", "use `jax.numpy.tile`."),
        **{
            name: Deprecated("shardwise.experimental.pallas.semaphores", f"use `jax.experimental.pallas.{name}`.")
            for name in _SEMAPHORES
        },
    },
)
