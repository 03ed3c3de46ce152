"""Bound the share of parameters that are annotated `Any`, per package."""

import ast

from tests.annotations import accepts_anything, annotations, any_aliases, table

BOUND = 0.08
# Packages far below the bound: the bounds that keep their types precise.
STRICTER = {"compiler": 0.012}
# Packages that handle values of a library without types: the objects of JAX's jaxprs, contexts and caches.
UNTYPED = {"inside_jax": 0.15}


def test_few_parameters_are_annotated_any() -> None:
    shares = {name: untyped / total for name, (untyped, total) in table().items()}
    excess = {
        name: f"{share:.1%}" for name, share in shares.items() if share > {**STRICTER, **UNTYPED}.get(name, BOUND)
    }
    assert excess == {}, (
        "use the types of shardwise/typing.py, in the compiler those of ir/operand.py and ir/op.py; "
        "`python -m tests.annotations` prints the table"
    )


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
