"""Symbolic dims: arithmetic, texts and comparisons."""

import itertools

import pytest

from shardwise.base.symbolic_dim import SymbolicScope, evaluate_dim, parse_dim, solve_dims, variable, variables_of
from shardwise.errors import InconclusiveDimensionOperation

SCOPE = SymbolicScope()
A, B = variable("a", SCOPE), variable("b", SCOPE)
EXPRESSIONS = {
    "2*a + 1": A + 1 + A,
    "a*b": B * A,
    "a^2 - 1": (A + 1) * (A - 1),
    "-1*a + 3": 3 - A,
    "floordiv(a, 2)": A // 2,
    "a": (4 * A) // 4,
    "mod(a + b, 8)": (A + B) % 8,
    "a^3": A**3,
    "floordiv(8, a)": 8 // A,
}


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_texts_and_values(text):
    dim = EXPRESSIONS[text]
    assert str(dim) == text
    assert parse_dim(text, SCOPE) == dim
    for a, b in itertools.product((1, 2, 5), repeat=2):
        expected = eval(
            text.replace("^", "**"), {"a": a, "b": b, "floordiv": lambda x, y: x // y, "mod": lambda x, y: x % y}
        )
        assert evaluate_dim(dim, {"a": a, "b": b}) == expected


def test_constants_are_integers():
    assert A - A == 0
    assert isinstance(A - A + 3, int)
    assert divmod(A, 2) == (A // 2, A % 2)
    assert variables_of([A * B, 3, A % 2]) == {"a", "b"}


def test_comparisons():
    assert A >= 1
    assert A + 1 > 1
    assert A >= 0
    assert not A < 1
    assert A != B
    assert variable("a", SCOPE) == A
    with pytest.raises(InconclusiveDimensionOperation, match="the comparison 'a' >= '2'"):
        bool(A >= 2)
    with pytest.raises(InconclusiveDimensionOperation, match="has no definite size"):
        range(A)


def test_scopes_do_not_mix():
    with pytest.raises(ValueError, match="belong to different scopes"):
        A + variable("c", SymbolicScope())


@pytest.mark.parametrize(
    "text", ["", "a b", "a/2", "f(a, 1)", "a.b", "'a'", "a**-1", "True", "(" * 500, "a" * 2000, "max(a)"]
)
def test_wrong_texts(text):
    with pytest.raises(ValueError, match="must consist of"):
        parse_dim(text, SCOPE)


def test_sizes_of_variables():
    assert solve_dims("f", [(A, 2 * B + 1), (A * B,)], [(3, 9), (12,)]) == {"a": 3, "b": 4}
    with pytest.raises(ValueError, match=r"a dim of size 13 is no 'a\*b', since other dims imply a = 3, b = 4"):
        solve_dims("f", [(A, B), (A * B,)], [(3, 4), (13,)])
    with pytest.raises(ValueError, match=r"do not determine the dimension variables \['a', 'b'\]"):
        solve_dims("f", [(A * B,)], [(12,)])
    with pytest.raises(ValueError, match="with the constraint 'a >= 1', but is called with a = 0"):
        solve_dims("f", [(A,)], [(0,)])
