"""The op of docs/own-ops.md, which is defined outside of the package, satisfies the laws of all ops."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.compiler.candidates.layout_problem import layout_problem
from shardwise.compiler.ir.op import Op
from shardwise.compiler.partition.spmd import partition
from shardwise.compiler.plan.choose import choose
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.errors import MissingRuleError
from shardwise.experimental import ops
from tests.compiler.ops.cases import case
from tests.compiler.ops.laws import LAWS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "own-ops.md"
SECOND_DIFFERENCE, WIDE, NONE = (1.0, -2.0, 1.0), (0.5, -1.5, 2.0, 0.25, 3.0), (1.5,)
CASES = {
    "rows": (0, SECOND_DIFFERENCE, "f32[8,3]"),
    "columns": (1, SECOND_DIFFERENCE, "f32[3,10]"),
    "uneven": (0, WIDE, "f32[11]"),
    "halo larger than a shard": (1, WIDE, "f64[2,5,2]"),
    "no neighbours": (0, NONE, "f32[7]"),
    "empty": (1, SECOND_DIFFERENCE, "f32[3,0]"),
}


@pytest.fixture(scope="module")
def page() -> Iterator[dict[str, Any]]:
    """Return the names that the page defines; its op is registered for these tests only."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {"__name__": "own_ops"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Op, "registry", dict(Op.registry))
        exec(compile("\n".join(blocks), str(PAGE), "exec"), names)
        yield names


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", CASES)
def test_op_obeys(page, law, name):
    dim, weights, types = CASES[name]
    op_case = case(page["Stencil"](dim, weights), types)
    if not LAWS[law](op_case):
        pytest.skip("the law does not apply to this case")
    law(op_case)


def test_laws_apply(page):
    """All laws apply to some case, except those of constant folding and of padding, and the law of kernels."""
    cases = [case(page["Stencil"](dim, weights), types) for dim, weights, types in CASES.values()]
    not_applicable = {law.__name__ for law, applies in LAWS.items() if not any(map(applies, cases))}
    assert not_applicable == {"folds_like_numpy", "padding_is_as_stated", "second_derivative_like_finite_difference"}


def test_only_the_halo_is_sent(page):
    op_case = case(page["Stencil"](0, SECOND_DIFFERENCE), "f32[64,3]")
    pin = Pin(Layout((("x",), ())))
    problem = layout_problem(op_case.program, AbstractMesh((8,), ("x",)), [pin], [pin])
    local = partition(problem, choose(problem))
    (equation,) = local.collectives()
    assert equation.op.name == "take_window"
    assert local.bytes_sent(equation) == 2 * 3 * 4  # two rows of three floats


def test_errors_of_the_page(page):
    with pytest.raises(TypeError, match=re.escape("stencil: needs floats with a dim 2, not f32[3,3]")):
        page["Stencil"](2, SECOND_DIFFERENCE)(jnp.ones((3, 3)))
    with pytest.raises(TypeError, match="the number of weights must be odd, but there are 2"):
        page["Stencil"](0, (1.0, 2.0))(jnp.ones(3))


def test_missing_rule_names_the_method(page):
    class Unfinished(ops.Op):
        name = "unfinished"

        def out_type(self, x):
            return x

    with pytest.raises(MissingRuleError, match=r"op 'unfinished' has no rule 'factors': write .*Unfinished.factors in"):
        Unfinished().factors(ops.ArrayType((3,), np.float32))
    with pytest.raises(MissingRuleError, match=r"has no rule 'jvp': write .*Unfinished\.jvp"):
        sw.jvp(Unfinished(), (jnp.ones(3),), (jnp.ones(3),))


def test_public_names():
    for name in ops.__all__:
        assert hasattr(ops, name)
    with pytest.raises(AttributeError, match=r"shardwise.experimental.ops has no attribute 'Elementwis'.*Did you mean"):
        ops.Elementwis  # noqa: B018
