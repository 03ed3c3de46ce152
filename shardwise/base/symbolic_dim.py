"""Symbolic dims: sizes that are expressions of dimension variables, such as `2*b + 1`. Variables are at least 1.

An expression is a polynomial. Its atoms are variables, and the functions `floordiv`, `mod`, `max` and `min` of other
expressions. The text of an expression is the same as in JAX, whose files have it.
"""

import ast
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeGuard, final

from shardwise.errors import InconclusiveDimensionOperation

_FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": max,
    "min": min,
}
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {">=": operator.ge, "<=": operator.le, "==": operator.eq}
_MAX_TEXT = 1000  # characters of an expression


@final
class SymbolicScope:
    """The dimension variables of one function, with constraints on them.

    Args:
        constraints_str: constraints such as `"b >= 2"`, `"s <= 512"` or `"mod(b, 8) == 0"`.

    Raises:
        ValueError: if a constraint is not of this form.

    Example:
        >>> scope = jax.export.SymbolicScope(["b >= 8"])
        >>> jax.export.symbolic_shape("b, 3", scope=scope)
        (b, 3)
    """

    def __init__(self, constraints_str: Sequence[str] = ()):
        if isinstance(constraints_str, str):
            raise ValueError(f"the constraints must be a sequence of strings, not the string {constraints_str!r}")
        self.constraints = [self._parse(text) for text in constraints_str]

    def _parse(self, text: str) -> tuple[str, str, "Dim", "Dim"]:
        """Return the text of a constraint, its comparison, and its sides."""
        for symbol in _COMPARISONS:
            left, found, right = text.partition(symbol)
            if found:
                return text, symbol, parse_dim(left, self), parse_dim(right, self)
        raise ValueError(f"the constraint {text!r} must have the form 'e1 >= e2', 'e1 <= e2' or 'e1 == e2'")

    def violated(self, sizes: Mapping[str, int]) -> str | None:
        """Return the first constraint that the sizes of the variables violate; None if there is none."""
        for name, size in sizes.items():
            if size < 1:
                return f"{name} >= 1"
        for text, symbol, left, right in self.constraints:
            if variables_of([left, right]) - sizes.keys():  # of another function
                continue
            if not _COMPARISONS[symbol](evaluate_dim(left, sizes), evaluate_dim(right, sizes)):
                return text
        return None

    def __repr__(self) -> str:
        return f"SymbolicScope({[text for text, *_ in self.constraints]})"


@final
@dataclass(frozen=True)
class Call:
    """`floordiv`, `mod`, `max` or `min` of two expressions."""

    function: str
    operands: "tuple[Dim, Dim]"

    def __str__(self) -> str:
        return f"{self.function}({self.operands[0]}, {self.operands[1]})"


_Atom: TypeAlias = "str | Call"
_Monomial: TypeAlias = "tuple[_Atom, ...]"  # the factors of a product, sorted by their text


@final
@dataclass(frozen=True)
class SymbolicDim:
    """An expression of dimension variables that is no constant: a sum of products with coefficients."""

    terms: tuple[tuple[_Monomial, int], ...]
    scope: SymbolicScope = field(compare=False)

    def __str__(self) -> str:
        text = " + ".join(_term_text(monomial, factor) for monomial, factor in self.terms)
        return text.replace("+ -", "- ")

    __repr__ = __str__

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        """Return the value for these sizes of the variables."""
        return sum(factor * math.prod(_atom_value(a, sizes) for a in monomial) for monomial, factor in self.terms)

    def linear(self) -> tuple[str, int, int] | None:
        """Return the variable, factor and constant of an expression `factor*variable + constant`, else None."""
        linear = [(monomial[0], factor) for monomial, factor in self.terms if len(monomial) == 1]
        constant = sum(factor for monomial, factor in self.terms if not monomial)
        if len(linear) != 1 or len(self.terms) - len(linear) > bool(constant) or not isinstance(linear[0][0], str):
            return None
        return linear[0][0], linear[0][1], constant

    def __add__(self, other: Any) -> "Dim":
        return _from_terms(Counter(dict(self.terms)), _terms(other), self._scope_with(other))

    def __mul__(self, other: Any) -> "Dim":
        products: dict[_Monomial, int] = {}
        for left, left_factor in self.terms:
            for right, right_factor in _terms(other).items():
                monomial = tuple(sorted((*left, *right), key=str))
                products[monomial] = products.get(monomial, 0) + left_factor * right_factor
        return _from_terms(products, {}, self._scope_with(other))

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> "Dim":
        return self * -1

    def __sub__(self, other: "Dim") -> "Dim":
        return self + -other

    def __rsub__(self, other: "Dim") -> "Dim":
        return -self + other

    def __pow__(self, power: int) -> "Dim":
        result: Dim = 1
        for _ in range(power):
            result = self * result
        return result

    def __floordiv__(self, divisor: Any) -> "Dim":
        exact = isinstance(divisor, int) and divisor > 0 and all(factor % divisor == 0 for _, factor in self.terms)
        if exact:
            return _from_terms({m: factor // divisor for m, factor in self.terms}, {}, self.scope)
        return _call("floordiv", self, divisor)

    def __rfloordiv__(self, dividend: Any) -> "Dim":
        return _call("floordiv", dividend, self)

    def __mod__(self, divisor: Any) -> "Dim":
        return _call("mod", self, divisor)

    def __rmod__(self, dividend: Any) -> "Dim":
        return _call("mod", dividend, self)

    def __divmod__(self, divisor: Any) -> "tuple[Dim, Dim]":
        return self // divisor, self % divisor

    def __ge__(self, other: Any) -> bool:
        return self._compare(other, ">=")

    def __gt__(self, other: Any) -> bool:
        return self._compare(other + 1, ">=")

    def __le__(self, other: Any) -> bool:
        return self._compare(other, "<=")

    def __lt__(self, other: Any) -> bool:
        return self._compare(other - 1, "<=")

    def _compare(self, other: Any, symbol: str) -> bool:
        """Compare by the bounds that follow from variables of at least 1.

        Raises:
            InconclusiveDimensionOperation: if both answers are possible.
        """
        difference = self - other if symbol == ">=" else other - self
        least, most = _bounds(difference)
        if least >= 0 or most < 0:
            return least >= 0
        raise InconclusiveDimensionOperation(
            f"the comparison '{self}' {symbol} '{other}' of symbolic dims is inconclusive: it depends on the sizes. "
            "Compute with the sizes of one call instead."
        )

    def __int__(self) -> int:
        raise InconclusiveDimensionOperation(f"the symbolic dim '{self}' has no definite size")

    __index__ = __int__

    def _scope_with(self, other: Any) -> SymbolicScope:
        if isinstance(other, SymbolicDim) and other.scope is not self.scope:
            raise ValueError(
                f"the symbolic dims '{self}' and '{other}' belong to different scopes. Create both with one call of "
                "`symbolic_shape`, or pass the same `scope`."
            )
        return self.scope


Dim: TypeAlias = int | SymbolicDim


def is_symbolic_dim(p: object) -> TypeGuard[SymbolicDim]:
    """Return whether a size is symbolic.

    Args:
        p: the size of a dim.

    Returns:
        True for an expression of dimension variables, and False for an integer.

    Raises:
        Nothing.

    Example:
        >>> [jax.export.is_symbolic_dim(size) for size in jax.export.symbolic_shape("b, 3")]
        [True, False]
    """
    return isinstance(p, SymbolicDim)


def variables_of(dims: Sequence[Dim]) -> set[str]:
    """Return the names of the variables in some dims."""
    return {name for dim in dims if isinstance(dim, SymbolicDim) for name in _variables(dim)}


def scope_of(dims: Sequence[Dim]) -> SymbolicScope:
    """Return the scope of the symbolic dims of one function.

    Raises:
        ValueError: if they belong to different scopes.
    """
    symbolic = [dim for dim in dims if isinstance(dim, SymbolicDim)]
    for dim in symbolic:
        symbolic[0]._scope_with(dim)
    return symbolic[0].scope


def evaluate_dim(dim: Dim, sizes: Mapping[str, int]) -> int:
    """Return the size of a dim for these sizes of the variables."""
    return dim.evaluate(sizes) if isinstance(dim, SymbolicDim) else dim


def variable(name: str, scope: SymbolicScope) -> SymbolicDim:
    """Return a dimension variable."""
    return SymbolicDim((((name,), 1),), scope)


def parse_dim(text: str, scope: SymbolicScope) -> Dim:
    """Parse an expression.

    Raises:
        ValueError: if it has another syntax.
    """
    error = ValueError(
        f"the symbolic dim {text!r} must consist of integers, variables, `+`, `-`, `*`, and the functions "
        f"{', '.join(_FUNCTIONS)}"
    )

    def convert(node: ast.expr) -> Dim:
        match node:
            case ast.Constant(value=int(value)) if not isinstance(value, bool):
                return value
            case ast.Name(id=name):
                return variable(name, scope)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -convert(operand)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return convert(left) + convert(right)
            case ast.BinOp(left=left, op=ast.Sub(), right=right):
                return convert(left) - convert(right)
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return convert(left) * convert(right)
            case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int(power))) if 0 < power < 10:
                return convert(left) ** power
            case ast.Call(func=ast.Name(id=name), args=[left, right], keywords=[]) if name in _FUNCTIONS:
                return _call(name, convert(left), convert(right))
        raise error

    try:
        if len(text) > _MAX_TEXT:
            raise error
        return convert(ast.parse(text.strip().replace("^", "**"), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):
        raise error from None


def solve_dims(name: str, expected: Sequence[Sequence[Dim]], actual: Sequence[Sequence[int]]) -> dict[str, int]:
    """Return the sizes of the variables in the shapes of a function's arguments, for the shapes of a call.

    Args:
        name: the name of the function.
        expected: the shapes that it was exported for.
        actual: the shapes of a call.

    Raises:
        ValueError: if no sizes fit, or if a constraint is violated.
    """
    pairs = [pair for shapes in zip(expected, actual, strict=True) for pair in zip(*shapes, strict=True)]
    symbolic = [(dim, size) for dim, size in pairs if isinstance(dim, SymbolicDim)]
    sizes: dict[str, int] = {}
    for dim, size in symbolic:
        linear = dim.linear()
        if linear is not None and linear[0] not in sizes:
            name_of_variable, factor, constant = linear
            sizes[name_of_variable] = (size - constant) // factor
    for dim, size in symbolic:
        if unknown := variables_of([dim]) - sizes.keys():
            raise ValueError(
                f"`{name}`: the shapes of the arguments do not determine the dimension variables {sorted(unknown)}. "
                "One dim of an argument must be the variable itself, or a multiple of it plus a constant."
            )
        if dim.evaluate(sizes) != size:
            raise ValueError(
                f"`{name}`: a dim of size {size} is no '{dim}', since other dims imply "
                f"{', '.join(f'{variable} = {value}' for variable, value in sizes.items())}"
            )
        if constraint := dim.scope.violated(sizes):
            implied = ", ".join(f"{variable} = {value}" for variable, value in sizes.items())
            raise ValueError(f"`{name}` was exported with the constraint '{constraint}', but is called with {implied}")
    return sizes


def _terms(dim: Dim) -> dict[_Monomial, int]:
    return dict(dim.terms) if isinstance(dim, SymbolicDim) else {(): operator.index(dim)}


def _from_terms(left: Mapping[_Monomial, int], right: Mapping[_Monomial, int], scope: SymbolicScope) -> Dim:
    """Return the sum of two polynomials: an integer if no variable is left."""
    total = {m: left.get(m, 0) + right.get(m, 0) for m in (*left, *right)}
    terms = sorted(((m, factor) for m, factor in total.items() if factor), key=lambda term: (-len(term[0]), str(term)))
    if all(not monomial for monomial, _ in terms):
        return sum(factor for _, factor in terms)
    return SymbolicDim(tuple(terms), scope)


def _call(function: str, left: Dim, right: Dim) -> Dim:
    if not isinstance(left, SymbolicDim) and not isinstance(right, SymbolicDim):
        return _FUNCTIONS[function](left, right)
    scope = left._scope_with(right) if isinstance(left, SymbolicDim) else right.scope  # type: ignore[union-attr]
    return SymbolicDim((((Call(function, (left, right)),), 1),), scope)


def _term_text(monomial: _Monomial, factor: int) -> str:
    powers = [f"{atom}^{count}" if count > 1 else str(atom) for atom, count in Counter(monomial).items()]
    return "*".join(powers if factor == 1 and powers else [str(factor), *powers])


def _atom_value(atom: _Atom, sizes: Mapping[str, int]) -> int:
    if isinstance(atom, str):
        return sizes[atom]
    left, right = (evaluate_dim(operand, sizes) for operand in atom.operands)
    return _FUNCTIONS[atom.function](left, right)


def _variables(dim: SymbolicDim) -> Iterator[str]:
    for monomial, _ in dim.terms:
        for atom in monomial:
            if isinstance(atom, str):
                yield atom
            else:
                yield from variables_of(atom.operands)


def _bounds(dim: Dim) -> tuple[float, float]:
    """Return bounds of a dim for variables of at least 1."""
    if not isinstance(dim, SymbolicDim):
        return dim, dim
    least = most = 0.0
    for monomial, factor in dim.terms:
        low = 1.0 if all(isinstance(atom, str) for atom in monomial) else -math.inf
        high = 1.0 if not monomial else math.inf
        ends = (factor * low, factor * high)
        least, most = least + min(ends), most + max(ends)
    return least, most
