"""KernelOp: the base class of ops that are one Triton kernel on NVIDIA GPUs, and a program of other ops elsewhere.

A kernel has the rules of any op, so it is propagated, partitioned, costed and explained like one. Its meaning, its
tangents and its batched form follow from the program of other ops, `plain`. A kernel with a `gradient` is transposed to
that: another kernel. Further derivatives are those of `plain`, and of the plain ops of the gradient.
"""

from collections.abc import Sequence
from typing import Any, final

from shardwise.base.caches import registered_cache
from shardwise.base.config import config
from shardwise.compiler.control.call import Call
from shardwise.compiler.control.linear_call import LinearCall
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.mlir_string import mlir_string
from shardwise.compiler.ir.op import BatchAxis, Hlo, HloValue, NumpyArray, Op, ignore_float_errors
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.program import Program, Source
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.triton_ir import TritonBuilder, supports_dtype
from shardwise.compiler.ops.placement.retype import match_type
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.trace.provenance import current_source
from shardwise.compiler.transforms.inline import inline
from shardwise.compiler.transforms.jvp import jvp, jvp_program
from shardwise.compiler.transforms.replay import replay
from shardwise.compiler.transforms.vmap import vmap
from shardwise.errors import KernelError

TARGET = "__gpu$xla.gpu.triton"


def runs_kernels(platform: str) -> bool:
    """Return whether kernels run on a platform, and are not programs of other ops there."""
    return platform == "cuda"


@final
@record
class Launch:
    """How a kernel is launched.

    Attributes:
        programs: the number of programs, along the first axis of the grid.
        warps: the number of warps per program.
        results: the types of the arrays that the kernel writes.
        more_axes: the number of programs along the second and third axis.
        stages: the number of iterations of a loop that load at the same time.
        written: pairs (index in `results`, index of the operand whose buffer the result reuses).
        repeated: the indices of operands that are passed again after all operands.
    """

    programs: int
    warps: int
    results: tuple[ArrayType, ...]
    more_axes: tuple[int, int] = (1, 1)
    stages: int = 1
    written: tuple[tuple[int, int], ...] = ()
    repeated: tuple[int, ...] = ()

    @property
    def grid(self) -> tuple[int, int, int]:
        """The number of programs along each axis."""
        return (self.programs, *self.more_axes)


@record
class KernelOp(Op):
    """An op that is one Triton kernel on NVIDIA GPUs. Subclasses define `plain`, `kernel_launch` and `emit`."""

    single = False

    def plain(self, *operands: Any) -> list[Any]:
        """Compute the results by applying other ops."""
        raise self.missing_rule("plain")

    def gradient(self, operands: Sequence[Any], results: Sequence[Any], cotangents: Sequence[Any]) -> Sequence[Any]:
        """Compute the cotangents of the operands, None for operands that have none."""
        raise self.missing_rule("gradient")

    @property
    def has_gradient(self) -> bool:
        """Whether the op is transposed to `gradient`, and not differentiated as `plain`."""
        return type(self).gradient is not KernelOp.gradient

    @property
    def label(self) -> str:
        """The name of the kernel in reports."""
        return self.name

    def obstacle(self, *types: ArrayType) -> str:
        """Return why the Triton kernel does not support operands of these types; the empty string if it does."""
        for type in (*types, *self.out_types(*types)):
            if not supports_dtype(type.dtype):
                return f"{type} has a dtype that the kernel does not support"
            if not type.size:
                return f"{type} is empty"
        return ""

    def reason_for_plain_ops(self, *types: ArrayType) -> str:
        """Return why operands of these types are computed by plain ops on a GPU; the empty string if not."""
        return self.obstacle(*types) if config.own_kernels else "the setting own_kernels is off"

    def kernel_launch(self, *types: ArrayType) -> Launch:
        """Return how the kernel is launched for operands of these types."""
        raise self.missing_rule("launch")

    def emit(self, kernel: TritonBuilder, launch: Launch, *types: ArrayType) -> None:
        """Emit the kernel. Its pointers are those of the operands, then those of `launch.results`."""
        raise self.missing_rule("emit")

    def triton_ir(self, launch: Launch, *types: ArrayType) -> tuple[str, str]:
        """Return the name of the function that is launched, and the module that has it."""
        kernel = TritonBuilder(self.name, (*types, *launch.results))
        self.emit(kernel, launch, *types)
        return self.name, kernel.text()

    def finish(self, hlo: Hlo, written: Sequence[HloValue]) -> Sequence[HloValue]:
        """Return the results of the op from the arrays that the kernel wrote."""
        return written

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        types = tuple(x.type.strong() for x in operands)
        if not runs_kernels(hlo.platform) or self.reason_for_plain_ops(*types):
            return hlo.program(inline(plain_program(self, types)), operands)
        launch = self.kernel_launch(*types)
        try:
            entry, module = triton_module(self, types)
        except KernelError as error:
            raise error.at(hlo.place) from None
        attributes = {
            "name": mlir_string(entry),
            "ir": mlir_string(module),
            "num_stages": f"{launch.stages} : i32",
            "num_warps": f"{launch.warps} : i32",
            **{f"grid_{axis}": f"{size} : i32" for axis, size in zip("xyz", launch.grid, strict=True)},
            "debug": "false",
        }
        passed = [*operands, *(operands[index] for index in launch.repeated)]
        written = hlo.custom_call(
            TARGET,
            passed,
            launch.results,
            attributes,
            [_row_major(x.type) for x in passed],
            [_row_major(type) for type in launch.results],
            launch.written,
        )
        return self.finish(hlo, written)

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        return evaluate(plain_program(self, tuple(ArrayType(x.shape, x.dtype) for x in operands)), operands)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """The tangents are those of `plain`, in a linear call whose transpose is `gradient` if there is one."""
        types = tuple(x.type.strong() for x in primals)
        active = tuple(tangent is not None for tangent in tangents)
        if not self.has_gradient:
            results, found = jvp(plain_program(self, types), primals, tangents)
            return tuple(results), tuple(found)
        results = self(*primals)
        try:
            program, transposed = _linear_programs(self, types, tuple(x.type.strong() for x in results), active)
        except (NotImplementedError, ValueError) as error:
            raise NotImplementedError(
                f"the derivative of the kernel {self.label!r} at {current_source().place} needs that of the plain ops "
                f"that compute its results, and one of them has none. {error}"
            ) from error
        call = LinearCall(program, len(primals) + len(results), transposed, second_derivative_scope(self.label))
        return results, call(*primals, *results, *(tangent for tangent in tangents if tangent is not None))

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """Split `plain` if it is differentiated: its loops would compute primals and tangents together."""
        if self.has_gradient:
            return super().linearize(primals, tangents)
        types = tuple(x.type.strong() for x in primals)
        pairs = [zip(values, types, strict=True) for values in (primals, tangents)]
        operands, active = ([x if x is None else match_type(x, type) for x, type in pair] for pair in pairs)
        return Call(plain_program(self, types)).linearize(operands, active)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        program = plain_program(self, tuple(unbatched_type(x, dim) for x, dim in zip(operands, dims, strict=True)))
        results, out_dims = vmap(program, axis, operands, dims)
        return tuple(results), tuple(out_dims)


def _row_major(type: ArrayType) -> tuple[int, ...]:
    """Return the dims of a row-major array from minor to major."""
    return tuple(reversed(range(type.ndim)))


_SECOND_DERIVATIVE = "second_derivative_of_"


def second_derivative_scope(label: str) -> str:
    """Return the named scope of the ops that compute second derivatives of a kernel."""
    return f"{_SECOND_DERIVATIVE}{label}"


def differentiated_kernel(source: Source) -> str:
    """Return the label of the kernel whose second derivative an equation computes; "" if it computes none."""
    outermost = source.scope[0] if source.scope else ""
    return outermost.removeprefix(_SECOND_DERIVATIVE) if outermost.startswith(_SECOND_DERIVATIVE) else ""


def unbatched_type(x: Operand, dim: int | None) -> ArrayType:
    """Return the type of an operand of `vmap` without its batch dim."""
    return x.type.strong() if dim is None else x.type.strong().without((dim,))


@registered_cache(maxsize=4096)
def plain_program(op: KernelOp, types: tuple[ArrayType, ...]) -> Program:
    """Return the program of other ops that computes a kernel's results."""
    return rewrite(op.name, types, op.plain)


@registered_cache(maxsize=4096)
def triton_module(op: KernelOp, types: tuple[ArrayType, ...]) -> tuple[str, str]:
    """Return the name of a kernel's function, and its module in Triton IR."""
    return op.triton_ir(op.kernel_launch(*types), *types)


def triton_ir(op: KernelOp, types: tuple[ArrayType, ...]) -> str:
    """Return a kernel as Triton IR."""
    return triton_module(op, types)[1]


@registered_cache(maxsize=4096)
def _linear_programs(
    op: KernelOp, types: tuple[ArrayType, ...], out_types: tuple[ArrayType, ...], active: tuple[bool, ...]
) -> tuple[Program, Program]:
    """Return (operands, results, tangents of active operands) → tangents of results, and its transpose."""
    differentiated, _ = jvp_program(plain_program(op, types), active, (True,) * len(out_types))
    active_types = [type for type, is_active in zip(types, active, strict=True) if is_active]
    count, width = len(types), len(out_types)

    def tangents(*args: Any) -> list[Any]:
        return replay(differentiated, (*args[:count], *args[count + width :]))[width:]

    def cotangents(*args: Any) -> list[Any]:
        found = op.gradient(args[:count], args[count : count + width], args[count + width :])
        return [x for x, is_active in zip(found, active, strict=True) if is_active]

    residuals = [*types, *out_types]
    return (
        rewrite(f"{op.label}_tangent", [*residuals, *active_types], tangents),
        rewrite(f"{op.label}_gradient", [*residuals, *out_types], cotangents),
    )
