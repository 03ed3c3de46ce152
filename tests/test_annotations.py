"""Bound the share of parameters that are annotated `Any`, per package."""

import ast

from tests.annotations import accepts_anything, annotations, any_aliases, table

BOUND = 0.08
# Packages above the bound: their share when it was recorded. Lower it when the types of a package become more precise.
RECORDED = {
    "api": 0.265,
    "base": 0.239,
    "checkpoints": 0.086,
    "data": 0.252,
    "example_libraries": 0.604,
    "execute": 0.123,
    "experimental": 0.291,
    "jax_modules": 0.403,
    "lax": 0.464,
    "modules": 0.328,
    "nn": 0.679,
    "parallel": 0.504,
    "random": 0.686,
    "runtime": 0.101,
    "scipy": 0.684,
    "strategies": 0.429,
}
# Packages far below the bound: the bounds that keep their types precise.
STRICTER = {"compiler": 0.012}


def test_few_parameters_are_annotated_any() -> None:
    shares = {name: untyped / total for name, (untyped, total) in table().items()}
    bounds = RECORDED | STRICTER
    excess = {name: f"{share:.1%}" for name, share in shares.items() if share > bounds.get(name, BOUND)}
    assert excess == {}, (
        "use the types of shardwise/typing.py, in the compiler those of ir/operand.py and ir/op.py; "
        "`python -m tests.annotations` prints the table"
    )


def test_recorded_shares_are_above_the_bound() -> None:
    assert [name for name, share in RECORDED.items() if share <= BOUND] == []


def test_stricter_bounds_are_below_the_bound() -> None:
    assert [name for name, share in STRICTER.items() if share >= BOUND] == []


def test_aliases_and_unions_of_any_count() -> None:
    tree = ast.parse(
        "Leaf: TypeAlias = Any\n"
        "Tree = Any\n"
        "Shape = tuple[Any, ...]\n"
        "def f(a: Any, /, b: Leaf, *c: Tree, d: typing.Any, e: Any | None, f: Shape, g: int, h, **i: list[Any]): ...\n"
    )
    aliases = any_aliases([tree])
    assert aliases == {"Any", "Leaf", "Tree"}
    assert [accepts_anything(each, aliases) for each in annotations(tree)] == [True] * 5 + [False] * 3
