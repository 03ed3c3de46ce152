"""FP8 training: products with weights are computed with float8 numbers, whose scales are part of the training state."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, NamedTuple, final

import ml_dtypes
import numpy as np

import shardwise.numpy as jnp
from shardwise import tree_util
from shardwise.api.ahead_of_time.inspect import eval_shape
from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct
from shardwise.api.jit import jit
from shardwise.api.static_args import NO_ARGUMENTS, split_static
from shardwise.api.transformations.differentiate import grad
from shardwise.api.transformations.traced_call import TracedCall, trace_call
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.control.call import Call
from shardwise.compiler.kernels.fp8_equations import Fp8Form
from shardwise.compiler.kernels.fp8_products import Fp8Products
from shardwise.compiler.kernels.grouped_dot import GroupedDot
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.errors import StrategyError
from shardwise.strategies.fp8_scales import FP8Scales, parameter_name
from shardwise.strategies.precision import PrecisionPolicy, mixed_precision
from shardwise.typing import DTypeLike

# Names of parameters whose products decide the loss directly, or which expert a token is sent to.
_HEADS = r"(?i)(^|[/_.])(lm_?)?head($|[/_.])|logits"
_EMBEDDINGS = r"(?i)embed|wte|wpe"
_ROUTERS = r"(?i)router"
_BF16 = PrecisionPolicy()


class ProductRow(NamedTuple):
    """A product of a function, as `FP8Policy.products` returns it.

    Attributes:
        name: the name of the parameter, with a number if it has several products; empty for a product without one.
        operands: the types of the operands.
        line: the user's line.
        reason: why the product is not computed with float8 numbers; empty if it is.

    Example:
        >>> row = jax.strategies.FP8Policy(precision=None).products(jnp.dot, jnp.ones((4, 4)), jnp.ones((4, 4)))[0]
        >>> row.operands, row.reason
        ('f32[4,4] and f32[4,4]', '')
    """

    name: str
    operands: str
    line: str
    reason: str


@final
@dataclass(frozen=True)
class FP8Policy:
    """Compute products with weights with float8 numbers: pass it to `mixed_precision`.

    A product whose operand descends from a parameter by casts, reshapes, transposes and slices is selected by the name
    of the parameter, such as `layers/0/up`. Both operands are rounded to `forward`, and in the backward pass the
    cotangent to `backward`. Each array has one scale, a power of two, which is computed from its largest magnitudes in
    the steps before (delayed scaling) and is part of the training state, an `FP8Scales`. Numbers that are too large for
    the scale become the largest number of the dtype. Other products, such as those of attention, do not change.

    Attributes:
        include: regular expressions; products are selected whose parameter's name matches one.
        exclude: a regular expression for names that are not selected, by default those of routers; "" for none.
        head: whether products of heads are selected: parameters whose names contain `head`, `lm_head` or `logits`.
        embedding: whether products of embeddings are selected, such as those of a head that is an embedding: parameters
            whose names contain `embed`, `wte` or `wpe`.
        history: the number of steps whose largest magnitudes decide a scale.
        margin: how many powers of two a scale is above the least one.
        forward: the float8 dtype of inputs and weights.
        backward: the float8 dtype of cotangents.
        precision: the dtypes of the rest, as in `mixed_precision`; None if the function casts its parameters itself.
        split_accumulator: whether the products of the backward pass add the parts of their sums in float32. Those of
            the forward pass are summed in the units for float8, which keep fewer bits on Hopper.

    Example:
        >>> jax.strategies.FP8Policy(history=32).history
        32
    """

    include: Sequence[str] = (".",)
    exclude: str = _ROUTERS
    head: bool = False
    embedding: bool = False
    history: int = 16
    margin: int = 0
    forward: DTypeLike = jnp.float8_e4m3fn
    backward: DTypeLike = jnp.float8_e5m2
    precision: PrecisionPolicy | None = _BF16
    split_accumulator: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.include, str):
            raise StrategyError(f"FP8Policy: include must be a sequence of patterns: write ({self.include!r},)")
        if not isinstance(self.include, Sequence):
            raise StrategyError(f"FP8Policy: include must be a sequence of patterns, not {self.include!r}")
        if self.precision is not None and not isinstance(self.precision, PrecisionPolicy):
            raise StrategyError(f"FP8Policy: precision must be a PrecisionPolicy or None, not {self.precision!r}")
        object.__setattr__(self, "include", tuple(self.include))
        for pattern in (*self.include, self.exclude):
            try:
                re.compile(pattern)
            except (re.error, TypeError) as error:
                raise StrategyError(f"FP8Policy: {pattern!r} is not a regular expression: {error}") from None
        for name in ("forward", "backward"):
            if getattr(self, name) not in (jnp.float8_e4m3fn, jnp.float8_e5m2):
                raise StrategyError(
                    f"FP8Policy: {name} must be float8_e4m3fn or float8_e5m2, not {getattr(self, name)!r}"
                )
        if not isinstance(self.history, int) or self.history < 1 or not isinstance(self.margin, int):
            raise StrategyError(
                f"FP8Policy: history ({self.history!r}) must be an integer of at least 1, and margin "
                f"({self.margin!r}) an integer"
            )

    def create(self, loss: Callable[..., Any], params: object, *batch: object, has_aux: bool = False) -> FP8Scales:
        """Return the state before the first step.

        For arrays, the magnitudes of one step are measured, without float8 numbers. For `ShapeDtypeStruct`s all scales
        are 1, which is too large for most gradients: use this only for the structure of the state.

        Args:
            loss: the function that `mixed_precision` receives.
            params: its first argument.
            *batch: its other arguments.
            has_aux: whether `loss` returns a tuple of the loss and other values.

        Raises:
            StrategyError: if no product is selected, or a pattern of `include` matches no parameter with a product.

        Example:
            >>> loss = lambda params, x: jnp.mean((x @ params["up"]) ** 2)
            >>> policy = jax.strategies.FP8Policy()
            >>> policy.create(loss, {"up": jnp.ones((16, 16))}, jnp.ones((4, 16))).scales["up"][0]
            Array(0.00390625, dtype=float32)
        """
        found = self._find(loss, params, batch)
        self._check_patterns(found)
        scales = {product.name: jnp.ones((*product.stack, 3), jnp.float32) for product in found.selected}
        count = sum(array.size for array in scales.values())
        history = jnp.zeros((count, self.history), jnp.float32)
        forward, backward = (_largest(dtype) for dtype in (self.forward, self.backward))
        state = FP8Scales(scales, history, (forward, forward, backward), self.margin)
        if any(isinstance(leaf, ShapeDtypeStruct) for leaf in tree_util.tree_leaves((params, batch))):
            return state
        measured = grad(self._transformed(loss, measures=True), 1, has_aux=has_aux)

        def first(params: object, state: FP8Scales, *batch: object) -> FP8Scales:
            result = measured(params, state, *batch)
            return state.update(result[0] if has_aux else result)

        updated: FP8Scales = jit(first)(params, state, *batch)
        return updated

    def products(self, loss: Callable[..., Any], params: object, *batch: object) -> list[ProductRow]:
        """Return all products of a function, and why each one is or is not computed with float8 numbers.

        Args:
            loss: the function that `mixed_precision` receives.
            params: its first argument, arrays or `ShapeDtypeStruct`s.
            *batch: its other arguments.

        Example:
            >>> loss = lambda params, x: jnp.mean((x @ params["head"]) ** 2)
            >>> jax.strategies.FP8Policy().products(loss, {"head": jnp.ones((16, 16))}, jnp.ones((4, 16)))[0].reason
            "'head' is the name of a head, which `head=True` selects"
        """
        return [
            ProductRow(product.name, " and ".join(map(str, product.types)), str(product.source), product.reason)
            for product in self._find(loss, params, batch).products
        ]

    def transform(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function (first argument, scales, other arguments) that `mixed_precision` returns."""
        return self._transformed(function, measures=False)

    def _transformed(self, function: Callable[..., Any], measures: bool) -> Callable[..., Any]:
        dtypes = np.dtype(self.forward), np.dtype(self.backward)
        computed = self._in_precision(function)

        def form(product: Dot | GroupedDot, dtype: Any) -> Fp8Form:
            return Fp8Form(product, dtype, *dtypes, measures, self.split_accumulator)

        @wraps(function)
        def call(params: object, scales: FP8Scales, *args: object, **keywords: object) -> Any:
            if not isinstance(scales, FP8Scales):
                raise StrategyError(
                    f"mixed_precision with an FP8Policy: the second argument must be the FP8Scales that "
                    f"`policy.create(loss, params, *batch)` returns, not {scales!r:.80}"
                )
            traced, found = self._trace(computed, params, args, keywords)
            _check_scales(scales, found)
            operands = [as_operand(scales.scales[product.name]) for product in found.selected]
            program = found.rewrite(form)
            return replace(traced, program=program, operands=[*traced.operands, *operands]).apply(Call(program))

        return call

    def _in_precision(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function if self.precision is None else mixed_precision(function, self.precision)

    def _trace(
        self, function: Callable[..., Any], params: object, args: Sequence[object], keywords: dict[str, Any]
    ) -> tuple[TracedCall, Fp8Products]:
        traced = trace_call(
            function, split_static(function, NO_ARGUMENTS, (params, *args), keywords, cached=False), "fp8"
        )
        names = [parameter_name(path) for path, _ in tree_util.tree_leaves_with_path(params)]
        names += [""] * (len(traced.program.inputs) - len(names))
        return traced, Fp8Products(traced.program, names, self._obstacle)

    def _find(self, loss: Callable[..., Any], params: object, batch: Sequence[object]) -> Fp8Products:
        """Return the products of a function of arrays or `ShapeDtypeStruct`s."""
        found: list[Fp8Products] = []
        computed = self._in_precision(loss)

        def trace(params: object, *batch: object) -> int:
            found.append(self._trace(computed, params, batch, {})[1])
            return 0

        eval_shape(trace, params, *batch)
        return found[0]

    def _obstacle(self, name: str) -> str:
        """Return why the products of a parameter are not computed with float8 numbers; "" if they are."""
        if self.exclude and re.search(self.exclude, name):
            return f"{name!r} matches the pattern of `exclude`"
        if not self.head and re.search(_HEADS, name):
            return f"{name!r} is the name of a head, which `head=True` selects"
        if not self.embedding and re.search(_EMBEDDINGS, name):
            return f"{name!r} is the name of an embedding, which `embedding=True` selects"
        if not any(re.search(pattern, name) for pattern in self.include):
            return f"{name!r} matches no pattern of `include`"
        return ""

    def _check_patterns(self, found: Fp8Products) -> None:
        names = sorted({product.name for product in found.products if product.name})
        unmatched = [pattern for pattern in self.include if not any(re.search(pattern, name) for name in names)]
        if not unmatched and found.selected:
            return
        rows = [f"{product.name or 'a product'} at {product.source}: {product.reason}" for product in found.products]
        reason = (
            f"the pattern {unmatched[0]!r} matches no parameter that is multiplied"
            if unmatched and names
            else ("no product is selected")
        )
        raise StrategyError("\n  ".join([f"FP8Policy: {reason}. Products of the function:", *(rows[:8] or ["none"])]))


def _check_scales(scales: FP8Scales, found: Fp8Products) -> None:
    """Raise StrategyError if a state does not belong to the products of a function."""
    expected = {product.name: (*product.stack, 3) for product in found.selected}
    shapes = {name: tuple(array.shape) for name, array in scales.scales.items()}
    if wrong := sorted({name for name, _ in expected.items() ^ shapes.items()}):
        raise StrategyError(
            f"mixed_precision with an FP8Policy: the scales do not belong to this function: {', '.join(wrong[:8])}. "
            "Create them by `policy.create(loss, params, *batch)`, with the same policy and function."
        )


def _largest(dtype: DTypeLike) -> float:
    return float(ml_dtypes.finfo(np.dtype(dtype)).max)  # type: ignore[no-untyped-call]
