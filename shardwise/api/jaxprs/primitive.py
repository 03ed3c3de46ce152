"""Primitive: an op that users and libraries define by rules, as in JAX. Calls of it are ops of the compiler.

    impl            arrays → results; runs where nothing is traced
    abstract_eval   types → types of the results
    jvp             `primitive_jvps[primitive]`: primals, tangents → results, their tangents
    transpose       `primitive_transposes[primitive]`: cotangent, operands → a cotangent for each operand
    batching        `primitive_batchers[primitive]`: operands, their batch dims → results, their batch dims
    lowering        `lowerings[primitive]`: a function of arrays that computes the results by other ops

The lowering is traced when a call is recorded, once for operands of the same types. What it computes is differentiated
by the rules alone. It is propagated, partitioned and explained as any other program.
"""

from collections.abc import Callable, Sequence
from typing import Any, final

from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, type_of
from shardwise.compiler.control.primitive_call import MissingLowering, Params, PrimitiveCall
from shardwise.compiler.dtypes import is_inexact
from shardwise.compiler.ir.dispatch import recording_frame, use_frames
from shardwise.compiler.ir.op import BatchAxis, UndefinedPrimal
from shardwise.compiler.ir.program import Program, Source
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.placement.retype import zeros_of
from shardwise.compiler.ops.shape.constants import IdentityKey, hashable
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.trace.provenance import current_source
from shardwise.compiler.transforms.memoize import memoized
from shardwise.errors import MissingRuleError
from shardwise.tree_util import register_pytree_node
from shardwise.typing import ArrayLike, SupportsShape

Function = Callable[..., Any]


class Primitive:
    """A primitive operation that is defined by its rules.

    Args:
        name: its name, which programs and errors show.

    Attributes:
        multiple_results: whether its rules return sequences of results; set it after construction.

    Raises:
        TypeError: if `name` is not a string.

    Example:
        >>> twice_p = jax.extend.core.Primitive("twice")
        >>> @twice_p.def_impl
        ... def twice(x):
        ...     return x + x
        >>> twice_p.bind(jnp.float32(3))
        Array(6., dtype=float32)
    """

    multiple_results = False
    call_primitive = False  # Distrax asks whether a primitive calls a function, in a form that JAX no longer has
    map_primitive = False

    def __init__(self, name: str):
        if not isinstance(name, str):
            raise TypeError(f"Primitive: the name must be a string, not {name!r}")
        self.name = name
        self.impl: Function | None = None
        self.abstract_eval: Function | None = None
        self.lowering_problem = (
            f"the primitive {name!r} cannot be compiled: it has no lowering. Register a function that computes its "
            "results by other functions of jax: "
            "`jax.interpreters.mlir.register_lowering(primitive, jax.interpreters.mlir.lower_fun(function))`."
        )
        self.lowering_error: type[MissingRuleError] = MissingRuleError
        self._rules = _Rules(self)

    def def_impl(self, impl: Function) -> Function:
        """Define what the primitive computes from arrays where nothing is traced. Works as a decorator."""
        self.impl = impl
        return impl

    def def_abstract_eval(self, abstract_eval: Function) -> Function:
        """Define the types of the results, from those of the operands. Works as a decorator."""
        self.abstract_eval = abstract_eval
        return abstract_eval

    def def_effectful_abstract_eval(self, abstract_eval: Function) -> Function:
        """Define the types of the results, by a function that returns them with a set of effects."""

        def without_effects(*types: ArrayType, **params: object) -> Any:
            return abstract_eval(*types, **params)[0]

        self.abstract_eval = without_effects
        return abstract_eval

    def get_bind_params(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments with which an interpreter applies an equation with these parameters."""
        return dict(params)

    def bind(self, *args: ArrayLike, **params: object) -> Any:
        """Apply the primitive to arrays, with static parameters.

        Raises:
            MissingRuleError: if a rule is missing that this call needs.
        """
        operands = [as_operand(x, self.name) for x in args]
        if recording_frame(operands) is None:
            if self.impl is not None:
                return self.impl(*args, **params)
            if self not in lowerings:
                raise MissingRuleError(f"the primitive {self.name!r} has no implementation: define it with `def_impl`")
        return self.apply_lowering(*operands, **params)

    def apply_lowering(self, *args: ArrayLike, **params: object) -> Any:
        """Apply the primitive by its lowering: as a compiled program, which is cached, if nothing is traced."""
        operands = [as_operand(x, self.name) for x in args]
        types, frozen = tuple(x.type for x in operands), _freeze(params)
        program = _lowered_program(self, lowerings.get(self), types, frozen, current_source())
        results = PrimitiveCall(program, self._rules, frozen)(*operands)
        return list(results) if self.multiple_results else results[0]

    def bind_with_trace(
        self, trace: Any, args: Sequence[Any], types: Sequence[ArrayType], params: dict[str, Any]
    ) -> Any:
        """Apply the primitive in a trace that `take_current_trace` returned. Haiku."""
        with use_frames(trace.frames):
            return self.bind(*args, **params)

    def result_types(self, types: Sequence[ArrayType], params: dict[str, Any]) -> list[ArrayType] | None:
        """Return the types of the results by `abstract_eval`; None if it is not defined."""
        if self.abstract_eval is None:
            return None
        return [as_type(aval) for aval in self.sequence(self.abstract_eval(*types, **params))]

    def sequence(self, results: Any) -> Sequence[Any]:
        """Return the list of results, from what a rule returns."""
        return list(results) if self.multiple_results else [results]

    def __repr__(self) -> str:
        return self.name


# Rules by primitive. Libraries write into these tables.
primitive_jvps: dict[Primitive, Function] = {}
primitive_transposes: dict[Primitive, Function] = {}
primitive_batchers: dict[Primitive, Function] = {}
axis_primitive_batchers: dict[Primitive, Function] = {}
lowerings: dict[Primitive, Function] = {}


@final
class Zero:
    """A tangent or cotangent that is known to be zero, as rules of primitives receive and return it.

    Attributes:
        aval: its type.
    """

    def __init__(self, aval: SupportsShape):
        self.aval = as_type(aval)

    @staticmethod
    def from_primal_value(value: ArrayLike) -> "Zero":
        """Return the zero tangent of a value."""
        return Zero(type_of(value))

    def __repr__(self) -> str:
        return f"Zero({self.aval})"


# Rules may pass both through functions of pytrees, such as vmap: they have no leaves.
register_pytree_node(Zero, lambda zero: ((), zero.aval), lambda type, _: Zero(type))
register_pytree_node(UndefinedPrimal, lambda primal: ((), primal.type), lambda type, _: UndefinedPrimal(type))


def instantiate_zeros(tangent: object) -> Any:
    """Return an array of zeros for a `Zero`, and anything else as it is."""
    return zeros_of(tangent.aval) if isinstance(tangent, Zero) else tangent


def as_type(aval: SupportsShape) -> ArrayType:
    """Return a type as rules of primitives may state it: anything with a shape and a dtype."""
    return aval if isinstance(aval, ArrayType) else ArrayType(tuple(aval.shape), aval.dtype)


@final
class _Rules:
    """The rules of a primitive, in the form in which the compiler calls them."""

    def __init__(self, primitive: Primitive):
        self.primitive = primitive

    @property
    def name(self) -> str:
        return self.primitive.name

    def jvp(self, params: Params, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        rule = self._rule(primitive_jvps, "cannot be differentiated", "jax.interpreters.ad.primitive_jvps")
        zeros = tuple(Zero(x.type) if t is None else t for x, t in zip(primals, tangents, strict=True))
        results, out_tangents = rule(tuple(primals), zeros, **thaw(params))
        results = [as_operand(x, self.name) for x in self.primitive.sequence(results)]
        return results, [self._array_or_none(t) for t in self.primitive.sequence(out_tangents)]

    def transpose(self, params: Params, cotangents: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
        rule = self._rule(primitive_transposes, "cannot be transposed", "jax.interpreters.ad.primitive_transposes")
        types = self.primitive.result_types([x.type for x in operands], thaw(params))
        if types is None:
            zeros: list[Any] = list(cotangents)
        else:
            zeros = [Zero(type) if ct is None else ct for ct, type in zip(cotangents, types, strict=True)]
        out = rule(zeros if self.primitive.multiple_results else zeros[0], *operands, **thaw(params))
        if isinstance(out, Zero) or out is None:
            return [None] * len(operands)
        return [self._array_or_none(ct) for ct in out]

    def vmap(
        self, params: Params, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]
    ) -> tuple[list[Any], list[int | None]]:
        if self.primitive in axis_primitive_batchers:
            rule = axis_primitive_batchers[self.primitive]
            results, out_dims = rule(axis.size, axis.name, None, tuple(operands), tuple(dims), **thaw(params))
        else:
            rule = self._rule(primitive_batchers, "cannot be batched", "jax.interpreters.batching.primitive_batchers")
            results, out_dims = rule(tuple(operands), tuple(dims), **thaw(params))
        sequence = self.primitive.sequence
        return [as_operand(x, self.name) for x in sequence(results)], list(sequence(out_dims))

    def _rule(self, table: dict[Primitive, Function], problem: str, path: str) -> Function:
        if self.primitive not in table:
            raise MissingRuleError(f"the primitive {self.name!r} {problem}: it has no rule in `{path}`")
        return table[self.primitive]

    def _array_or_none(self, x: object) -> Array | None:
        if x is None or isinstance(x, (Zero, UndefinedPrimal)):
            return None
        operand = as_operand(x, self.name)
        return operand if is_inexact(operand.type.dtype) else None


@memoized(maxsize=256)
def _lowered_program(
    primitive: Primitive, lowering: Function | None, types: tuple[ArrayType, ...], frozen: Params, source: Source
) -> Program:
    """Return what a primitive computes, for operands of these types; `source` is the line that applies it."""
    params = thaw(frozen)
    expected = primitive.result_types(types, params)

    def compute(*operands: Array) -> list[Array]:
        if lowering is None:
            assert expected is not None
            return list(
                MissingLowering(primitive.lowering_problem, tuple(expected), primitive.lowering_error)(*operands)
            )
        return [as_operand(x, primitive.name) for x in primitive.sequence(lowering(*operands, **params))]

    if lowering is None and expected is None:
        raise MissingRuleError(
            f"the primitive {primitive.name!r} cannot be traced: it has neither `def_abstract_eval` nor a lowering"
        )
    program = rewrite(primitive.name, types, compute)
    shapes = [(type.shape, type.dtype) for type in program.out_types]
    if expected is not None and shapes != [(type.shape, type.dtype) for type in expected]:
        raise TypeError(
            f"the primitive {primitive.name!r}: its abstract_eval returns {_listed(expected)}, but its lowering "
            f"computes {_listed(program.out_types)}"
        )
    return program


def _freeze(params: dict[str, Any]) -> Params:
    """Return parameters as a hashable tuple; values that are not hashable are compared by identity."""
    return tuple((name, hashable(value)) for name, value in params.items())


def thaw(params: Params) -> dict[str, Any]:
    """Return the parameters of a call as keyword arguments."""
    return {name: value.value if isinstance(value, IdentityKey) else value for name, value in params}


def _listed(types: Sequence[ArrayType]) -> str:
    return ", ".join(map(str, types))
