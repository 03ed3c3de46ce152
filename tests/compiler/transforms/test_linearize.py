"""linearize: no op runs twice."""

from shardwise.compiler.control.call import Call
from shardwise.compiler.ops.elementwise.arithmetic import Add, Mul, Neg
from shardwise.compiler.ops.elementwise.transcendental import Exp
from shardwise.compiler.transforms.linearize import linearize_program
from tests.compiler.transforms.programs import ops_of, program
from tests.compiler.transforms.test_transforms import gradient


class TestNothingRunsTwice:
    def test_linearizing_shares_the_forward_computation(self):
        body = program("exps", "f64[3]", lambda x: [Exp()(Exp()(Exp()(x)))])
        forward, linear, _ = linearize_program(body, (True,))
        assert ops_of(forward) == ["exp", "exp", "exp"]
        assert ops_of(linear) == ["mul", "mul", "mul"]
        assert len(forward.outputs) == 1 + 3  # each exp is its own residual

    def test_linearizing_a_call_splits_it(self):
        inner = program("inner", "f64[3]", lambda x: [Exp()(Exp()(x))])
        body = program("outer", "f64[3]", lambda x: [Exp()(Call(inner)(x)[0])])
        forward, linear, _ = linearize_program(body, (True,))
        assert ops_of(forward).count("exp") == 3
        assert "exp" not in ops_of(linear)

    def test_linearizing_a_gradient_computes_each_exp_once(self):
        body = program("exps", "f64[3]", lambda x: [Exp()(Exp()(x))])
        forward, linear, _ = linearize_program(gradient(body), (True,))
        assert ops_of(forward).count("exp") == 2
        assert "exp" not in ops_of(linear)

    def test_a_linear_program_keeps_only_the_residuals_that_it_needs(self):
        body = program("scaled", "f64[3] f64[3]", lambda x, y: [Mul()(Neg()(x), Exp()(y))])
        forward, linear, _ = linearize_program(body, (True, False))
        assert ops_of(linear) == ["neg", "mul"]
        assert len(forward.outputs) == 2  # the result, and exp(y)
        forward, linear, _ = linearize_program(body, (False, True))
        assert len(forward.outputs) == 1 + 2  # the result, exp(y) and -x

    def test_equations_without_tangents_are_not_in_the_linear_program(self):
        body = program("partly", "f64[3] f64[3]", lambda x, y: [Add()(Mul()(Exp()(y), Exp()(y)), Neg()(x))])
        _, linear, _ = linearize_program(body, (True, False))
        assert ops_of(linear) == ["neg"]
