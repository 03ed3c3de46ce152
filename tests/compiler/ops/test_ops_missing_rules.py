"""A rule that a family of ops leaves to its members is an error that names the rule and the class."""

import inspect

import pytest

from shardwise.compiler.control.data_dependent import DataDependentControl
from shardwise.compiler.ir.control import Control
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ops.collective.collectives import Collective, CollectivePermute
from shardwise.compiler.ops.collective.named import NamedReduction
from shardwise.compiler.ops.collective.named_exchange import NamedExchangeOp
from shardwise.compiler.ops.elementwise.bitwise import Shift
from shardwise.compiler.ops.elementwise.unary import Unary
from shardwise.compiler.ops.linalg.batched import BatchedMatrixOp
from shardwise.compiler.ops.random.counter_based import CounterBased
from shardwise.compiler.ops.random.threefry import Threefry
from shardwise.compiler.ops.reduce.cumulative import PrefixScan
from shardwise.compiler.ops.reduce.window_argmax import WindowOp
from shardwise.compiler.samplers.sampler import Sampler
from shardwise.compiler.special.gamma_erf import CompositeFunction, MultiOperandFunction
from shardwise.errors import MissingRuleError

RULES = {
    Op: ("with_programs", "result_sums", "exchanged_bytes", "interpret"),
    Collective: ("exchange", "traffic"),
    CollectivePermute: ("pairs",),
    NamedReduction: ("groups", "along_dim", "reduce_copies"),
    NamedExchangeOp: ("along_dim", "with_leading_dim"),
    Control: ("bindings", "const_groups", "with_programs"),
    DataDependentControl: ("allowing_divergence",),
    Unary: ("tangent",),
    Shift: ("shift",),
    BatchedMatrixOp: ("lower_nonempty", "reference_one"),
    CounterBased: ("out_dtype",),
    Sampler: ("sample",),
    Threefry: ("lower_combine", "combine"),
    PrefixScan: ("neutrals", "combine", "scans"),
    WindowOp: ("fills",),
    MultiOperandFunction: ("partial_derivative",),
    CompositeFunction: ("formula",),
}


@pytest.mark.parametrize(
    ("family", "rule"),
    [(family, rule) for family, rules in RULES.items() for rule in rules],
    ids=lambda x: x if isinstance(x, str) else x.__name__,
)
def test_a_rule_that_no_family_defines(family, rule, monkeypatch):
    monkeypatch.setattr(family, "name", "incomplete", raising=False)
    op = object.__new__(family)
    with pytest.raises(
        MissingRuleError, match=f"op 'incomplete' has no rule {rule!r}: write {family.__name__}.{rule} in"
    ):
        method = getattr(op, rule)  # a property raises here
        method(*[None] * _count_required(method))


def _count_required(method):
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = inspect.signature(method).parameters.values()
    return sum(parameter.kind in kinds and parameter.default is parameter.empty for parameter in parameters)
