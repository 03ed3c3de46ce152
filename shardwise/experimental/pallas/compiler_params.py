"""Parameters of the compilers of kernels, and of JAX's interpreter of TPUs: accepted, and ignored."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum, unique
from typing import Any, Literal, final


@unique
class GridDimensionSemantics(Enum):
    """Whether the steps along an axis of the grid may run in any order. The interpreter runs them in order."""

    PARALLEL = "parallel"
    CORE_PARALLEL = "core_parallel"
    SUBCORE_PARALLEL = "subcore_parallel"
    ARBITRARY = "arbitrary"


@unique
class SideEffectType(Enum):
    """Whether a compiler may drop or merge kernels. The interpreter has no side effects besides Refs and prints."""

    PURE = "pure"
    DATAFLOW_SIDE_EFFECTING = "dataflow_side_effecting"
    SIDE_EFFECTING = "side_effecting"


@final
@dataclass(frozen=True)
class TpuCompilerParams:
    """The parameters of the compiler for TPUs, under JAX's names; see JAX's documentation. They are ignored."""

    dimension_semantics: Any = None
    allow_input_fusion: Any = None
    vmem_limit_bytes: int | None = None
    collective_id: int | None = None
    has_side_effects: bool | SideEffectType = False
    flags: Any = field(default=None, hash=False)
    internal_scratch_in_bytes: int | None = None
    serialization_format: int = 1
    disable_bounds_checks: bool = False
    disable_semaphore_checks: bool = False
    skip_device_barrier: bool = False
    allow_collective_id_without_custom_barrier: bool = False
    shape_invariant_numerics: bool = True
    use_tc_tiling_on_sc: bool | None = None
    needs_layout_passes: bool = True
    fuse_transposed_lhs_in_matmul: bool = False

    def replace(self, **changes: Any) -> "TpuCompilerParams":
        """Return a copy with other fields."""
        return replace(self, **changes)


_STAGES = 32  # shared memory ends long before


@final
@dataclass(frozen=True)
class TritonCompilerParams:
    """The parameters of the compiler for GPUs.

    Attributes:
        num_warps: the number of warps of a step, a power of two up to 32.
        num_stages: the number of stages of pipelined loops.
    """

    num_warps: int | None = None
    num_stages: int | None = None

    def __post_init__(self) -> None:
        if self.num_warps not in (None, 1, 2, 4, 8, 16, 32) or isinstance(self.num_warps, float):
            raise ValueError(
                f"CompilerParams: num_warps must be a power of two from 1 to 32, or None, not {self.num_warps!r}"
            )
        if self.num_stages is not None and not (isinstance(self.num_stages, int) and 1 <= self.num_stages <= _STAGES):
            raise ValueError(
                f"CompilerParams: num_stages must be an integer from 1 to {_STAGES}, or None, not {self.num_stages!r}"
            )


@final
@dataclass(frozen=True, kw_only=True)
class InterpretParams:
    """The parameters of JAX's interpreter of TPUs, for `interpret=`; see JAX's documentation. They are ignored."""

    detect_races: bool = False
    out_of_bounds_reads: Literal["raise", "uninitialized"] = "raise"
    skip_floating_point_ops: bool = False
    uninitialized_memory: Literal["nan", "zero"] = "nan"
    num_cores_or_threads: int = 1
    vector_clock_size: int | None = None
    logging_mode: Any = None
    dma_execution_mode: Literal["eager", "on_wait"] = "on_wait"
    random_seed: int | None = None
    grid_point_recorder: Any = None
    allow_hbm_allocation_in_run_scoped: bool = False


_DEFAULT = InterpretParams()


@contextmanager
def force_tpu_interpret_mode(params: InterpretParams = _DEFAULT) -> Iterator[None]:
    """Enter a `with` block in which kernels are interpreted, as they are everywhere.

    Args:
        params: ignored.

    Yields:
        Nothing.

    Raises:
        Nothing.

    Example:
        >>> with pallas.tpu.force_tpu_interpret_mode():
        ...     x = pallas.pallas_call(lambda ref: None, jnp.zeros(1))()
    """
    del params
    yield


def set_tpu_interpret_mode(params: InterpretParams = _DEFAULT) -> None:
    """Do nothing: kernels are always interpreted.

    Args:
        params: ignored.

    Raises:
        Nothing.

    Example:
        >>> pallas.tpu.set_tpu_interpret_mode()
    """


def reset_tpu_interpret_mode_state() -> None:
    """Do nothing: the interpreter has no state.

    Example:
        >>> pallas.tpu.reset_tpu_interpret_mode_state()
    """
