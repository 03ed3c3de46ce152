"""fp8_dot: a product of an array and a weight, computed with float8 numbers, whose scales are operands.

    x, weight, scales [3], scale of x, x8, x8ᵀ, largest magnitude of x → x · weight

A grouped product has the offsets of its groups as another operand.

The scales are those of x, of the weight, and of the cotangent of the product. The cotangent of the scales is no
derivative: it has the largest magnitudes of the three arrays, from which the scales of the next step are computed.

    before      x8, x8ᵀ = quantize x, once for all products of x
    forward     w8 = quantize weight                            x8 · w8
    backward    g8, g8ᵀ = quantize cotangent                    dx = g8 · w8ᵀ,  dw = x8ᵀ · g8

All three products sum over dims that are minor in memory where the kernel writes both orders, as libraries for float8
require.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

from shardwise.base.caches import registered_cache
from shardwise.compiler.control.call import Call, CallLike
from shardwise.compiler.control.linear_call import LinearCall
from shardwise.compiler.control.scan import vmap_by_scan
from shardwise.compiler.ir.masks import drop_none
from shardwise.compiler.ir.op import BatchAxis
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.fp8_equations import DotEquations, Fp8Equations, Fp8Form
from shardwise.compiler.kernels.fp8_grouped import GroupedEquations, as_dot
from shardwise.compiler.kernels.grouped_dot import GroupedDot
from shardwise.compiler.kernels.kernel import unbatched_type
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.elementwise.arithmetic import StopGradient
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.transforms.vmap import vmap


@final
@record
class Fp8Dot(CallLike):
    """(x, weight, scales, the results of `quantize_operand`, and the product's other operands) → the product.

    `program` computes it, and is inlined before layouts are planned. The operand x itself is only differentiated.
    """

    name = "fp8_dot"
    opaque = True
    form: Fp8Form

    @staticmethod
    def apply(
        form: Fp8Form,
        x: Operand,
        weight: Operand,
        scales: Operand,
        quantized: Sequence[Any],
        others: Sequence[Any] = (),
    ) -> Any:
        """Return the product. `quantized` is what `quantize_operand` returned for x."""
        x, weight = (Convert(z.type.dtype)(z) if z.type.weak else z for z in (x, weight))
        operands = x, weight, scales, *quantized, *others
        programs = _programs(form, tuple(z.type.strong() for z in operands), (False,) * len(operands))
        return Fp8Dot(programs.result, form)(*operands)[0]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        active = tuple(tangent is not None for tangent in tangents)
        assert not any(active[3:]), "the quantized operand has no derivative"
        programs = _programs(self.form, tuple(x.type.strong() for x in primals), active)
        result, *residuals = Call(programs.forward)(*primals)
        linear = LinearCall(programs.tangent, len(residuals), programs.cotangents)
        return (result,), linear(*residuals, *drop_none(tangents))

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        """Compute one product of all elements, whose scales they share; element by element if they do not."""
        x, weight, scales, x_scale, *_ = operands
        if dims[2] is not None or dims[3] is not None:
            return vmap_by_scan(self, axis, operands, dims)
        if not isinstance(self.form.product, Dot):
            types = [unbatched_type(x, dim) for x, dim in zip(operands, dims, strict=True)]
            results, out_dims = vmap(rewrite(self.name, types, self._as_dot), axis, operands, dims)
            return tuple(results), tuple(out_dims)
        dot, dim = self.form.product.vmapped((x, weight), dims[:2])
        form = replace(self.form, product=dot)
        return (Fp8Dot.apply(form, x, weight, scales, quantize_operand(form, x, x_scale)),), (dim,)

    def _as_dot(self, *operands: Operand) -> list[Any]:
        """Return the result of a grouped product as one product with all weights, which can be vmapped."""
        x, weight, scales, x_scale, *_, offsets = operands
        assert isinstance(self.form.product, GroupedDot)
        dot, rows = as_dot(self.form.product, x, offsets)
        form = replace(self.form, product=dot)
        return [Fp8Dot.apply(form, rows, weight, scales, quantize_operand(form, rows, x_scale))]


def quantize_operand(form: Fp8Form, x: Operand, scale: Operand) -> list[Any]:
    """Return the last operands of `Fp8Dot`: the scale, the float8 numbers of x, their transpose, its largest magnitude.

    They have no derivatives.
    """
    x, scale = StopGradient()(x), StopGradient()(scale)
    return [scale, *_equations(form, (x.type, x.type)).quantize_x(x, scale)]


def _equations(form: Fp8Form, types: tuple[ArrayType, ArrayType]) -> Fp8Equations:
    return (DotEquations if isinstance(form.product, Dot) else GroupedEquations)(form, types)


@final
@record
class _Programs:
    """The programs of a product.

    Attributes:
        result: (x, weight, scales) → the product.
        forward: the same, which also returns residuals.
        tangent: (residuals, tangents of active operands) → the tangent of the product.
        cotangents: (residuals, the cotangent of the product) → the cotangents of active operands.
    """

    result: Program
    forward: Program
    tangent: Program
    cotangents: Program


@registered_cache(maxsize=4096)
def _programs(form: Fp8Form, types: tuple[ArrayType, ...], active: tuple[bool, ...]) -> _Programs:
    equations = _equations(form, (types[0], types[1]))
    forward = rewrite("fp8_forward", types, equations.forward)
    residuals = list(forward.out_types[1:])
    active_types = [type for type, is_active in zip(types, active, strict=True) if is_active]

    def tangent(*args: Any) -> list[Any]:
        return [equations.tangent(args[: len(residuals)], args[len(residuals) :], active)]

    def cotangents(*args: Any) -> list[Any]:
        found = equations.cotangents(args[:-1], args[-1])
        return [x for x, is_active in zip(found, active, strict=False) if is_active]

    return _Programs(
        rewrite("fp8_dot", types, lambda *args: equations.forward(*args)[:1]),
        forward,
        rewrite("fp8_tangent", [*residuals, *active_types], tangent),
        rewrite("fp8_cotangents", [*residuals, forward.out_types[0]], cotangents),
    )
