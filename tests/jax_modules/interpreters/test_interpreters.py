"""jax.interpreters and jax.extend.core: what libraries that define primitives ask of tracers and lowerings."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.api.jaxprs.jaxpr import Literal
from shardwise.api.jaxprs.primitive import Primitive
from shardwise.errors import MissingRuleError, UnsupportedError
from shardwise.extend.core import find_top_trace
from shardwise.extend.linear_util import wrap_init
from shardwise.extend.mlir.dialects import stablehlo
from shardwise.jax_modules.interpreters import ad, mlir, partial_eval


@pytest.mark.parametrize("transform", [lambda f: f, sw.jit])
def test_tracers_of_a_jvp_with_a_tangent(transform):
    found = []

    def function(x, y):
        trace = find_top_trace((x, y))
        values = {
            "argument": x,
            "result": jnp.sin(x) * y,
            "stopped": sw.lax.stop_gradient(x),
            "integer": x.astype(int),
            "constant": jnp.ones(2),
            "number": 3,
        }
        found.append(
            [name for name, z in values.items() if isinstance(z, ad.JVPTracer) and z._trace.main is trace.main]
        )
        return values["result"]

    assert find_top_trace(()) is None
    value, tangent = transform(lambda x: sw.jvp(function, (x, 2.0), (1.0, 0.0)))(0.5)
    np.testing.assert_allclose([value, tangent], [2 * np.sin(0.5), 2 * np.cos(0.5)], rtol=1e-6)
    assert found == [["argument", "result"]]


def test_tracers_of_an_outer_jvp_belong_to_another_trace():
    def inner(y, x):
        trace = find_top_trace(y)
        assert isinstance(x, ad.JVPTracer) and x._trace.main is not trace.main
        return x * y

    def outer(x):
        return sw.jvp(lambda y: inner(y, x), (x,), (1.0,))[1]

    assert sw.jvp(outer, (3.0,), (1.0,))[1] == 1


def test_a_lowering_that_calls_python():
    negate_p = Primitive("negate")
    negate_p.multiple_results = True
    negate_p.def_abstract_eval(lambda x: [x])
    seen = []

    def lower(ctx, x):
        def callback(x):
            seen.append(np.asarray(x).tolist())
            return (-np.asarray(x),)

        results, _, keepalive = mlir.emit_python_callback(
            ctx, callback, None, [x], ctx.avals_in, ctx.avals_out, has_side_effect=False, sharding=None
        )
        ctx.module_context.add_keepalive(keepalive)
        return results

    mlir.register_lowering(negate_p, lower)
    assert sw.jit(lambda x: negate_p.bind(2 * x))(jnp.arange(2.0))[0].tolist() == [0, -2]
    assert seen == [[0, 2]]


def test_a_lowering_that_builds_mlir():
    twice_plus_p = Primitive("twice_plus")
    twice_plus_p.def_abstract_eval(lambda x, y: x)

    def lower(ctx, x, y):
        shape = ctx.avals_in[0].shape
        return [
            stablehlo.AddOp(stablehlo.MulOp(x, mlir.ir_constant(np.full(shape, 2), aval=ctx.avals_in[0])), y).result
        ]

    mlir.register_lowering(twice_plus_p, lower, platform="cpu")
    x = np.arange(8, dtype=np.float32)
    assert twice_plus_p.bind(2.0, 3.0) == 7  # it has no implementation
    assert sw.jit(twice_plus_p.bind)(x, x).tolist() == (3 * x).tolist()
    mesh = sw.make_mesh((4,), ("data",))
    on_mesh = sw.device_put(x, sw.NamedSharding(mesh, sw.P("data")))
    result = sw.jit(twice_plus_p.bind)(on_mesh, on_mesh)
    assert result.tolist() == (3 * x).tolist() and result.sharding.spec == sw.P("data")


@pytest.mark.parametrize("value", [True, 3, 2.5, 1j, np.array([[1, 2], [3, 4]], np.int8), np.zeros((0, 2), np.float32)])
def test_a_constant_in_a_lowering(value):
    constant_p = Primitive("constant")
    expected = jnp.asarray(value)
    constant_p.def_abstract_eval(lambda: sw.core.ShapedArray(expected.shape, expected.dtype))
    mlir.register_lowering(constant_p, lambda ctx: [mlir.ir_constant(value)])
    result = sw.jit(constant_p.bind)()
    assert (result.dtype, result.tolist()) == (expected.dtype, expected.tolist())


def test_a_lowering_with_types_and_several_results():
    rows_p = Primitive("rows")
    rows_p.multiple_results = True
    rows_p.def_abstract_eval(lambda x: [sw.core.ShapedArray((2, *x.shape), x.dtype), x])

    def lower(ctx, x):
        rows = stablehlo.broadcast_in_dim(
            mlir.aval_to_ir_type(ctx.module_context, ctx.avals_out[0]), x, mlir.dense_int_array([1])
        )
        assert x.type.element_type == mlir.dtype_to_ir_type(ctx.avals_in[0].dtype)
        return [rows, stablehlo.negate(x)]

    mlir.register_lowering(rows_p, lower)
    rows, negative = sw.jit(rows_p.bind)(jnp.arange(2.0))
    assert (rows.tolist(), negative.tolist()) == ([[0, 1], [0, 1]], [0, -1])


def test_a_lowering_that_calls_a_function_of_arrays():
    sine_p = Primitive("sine")
    sine_p.def_abstract_eval(lambda x: x)
    mlir.register_lowering(sine_p, lambda ctx, x: mlir.lower_fun(jnp.sin, multiple_results=False)(ctx, *[x]))
    assert sw.jit(sine_p.bind)(0.5) == jnp.sin(0.5)


def test_what_a_lowering_cannot_do():
    outside_p = Primitive("outside")
    outside_p.def_abstract_eval(lambda x: x)
    with pytest.raises(MissingRuleError, match="'outside' cannot be compiled: it has no lowering"):
        sw.jit(outside_p.bind)(1.0)
    mlir.register_lowering(outside_p, lambda ctx, x: [stablehlo.custom_call([x.type], [x], "code")])
    with pytest.raises(UnsupportedError, match="the target 'code' is not supported: it is code outside of the module"):
        sw.jit(outside_p.bind)(1.0)
    mlir.register_lowering(outside_p, lambda ctx, x: ctx.builder.add(x, x))
    with pytest.raises(AttributeError, match="builder"):
        sw.jit(outside_p.bind)(1.0)


def test_an_interpreter_calls_the_function_of_a_custom_jvp():
    """Equinox evaluates jaxprs so: `bind` with the parameters of `get_bind_params`, or calls the function itself."""

    @sw.custom_jvp
    def square(x):
        return x * x

    square.defjvp(lambda primals, tangents: (square(*primals), tangents[0]))
    closed = sw.make_jaxpr(lambda x: square(jnp.sin(x)))(0.5)
    sine, custom = closed.eqns
    params = custom.primitive.get_bind_params(custom.params)
    (value,) = params["subfuns"][0].call_wrapped(3.0)
    assert value == 9 and custom.primitive.bind(jnp.float32(3), **params)[0] == 9
    assert sine.primitive.get_bind_params(sine.params) == sine.params


@pytest.mark.parametrize("kind", ["while", "scan", "cond"])
def test_loops_of_a_jaxpr_that_an_interpreter_has_rebuilt(kind):
    """The rebuilt jaxprs are traced for types that are not weak, and return weak ones."""

    def function(x):
        if kind == "while":
            return sw.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, 2 * c[1]), (0, x))[1]
        if kind == "scan":
            return sw.lax.scan(lambda c, y: ((c[0] + 1, c[1] * y), None), (0, x), jnp.full(3, 2.0))[0][1]
        return sw.lax.cond(x[0] > 0, lambda n: n * 8.0 * x, lambda n: x, 1)

    def rebuilt(closed):
        structs = [sw.ShapeDtypeStruct(type.shape, type.dtype) for type in closed.in_avals]
        return sw.make_jaxpr(lambda *args: evaluate(closed, args))(*structs)

    def evaluate(closed, args):
        env = dict(zip((*closed.jaxpr.invars, *closed.jaxpr.constvars), (*args, *closed.consts), strict=True))

        def read(atom):
            return atom.val if isinstance(atom, Literal) else env[atom]

        for eqn in closed.eqns:
            params = {
                name: tuple(map(rebuilt, x)) if name == "branches" else rebuilt(x) if name.endswith("jaxpr") else x
                for name, x in eqn.params.items()
            }
            results = eqn.primitive.bind(*map(read, eqn.invars), **eqn.primitive.get_bind_params(params))
            env.update(zip(eqn.outvars, results if eqn.primitive.multiple_results else [results], strict=True))
        return [read(atom) for atom in closed.jaxpr.outvars]

    x = jnp.array([1.0, 3.0])
    (result,) = evaluate(sw.make_jaxpr(function)(x), [x])
    assert result.tolist() == [8, 24]


@pytest.mark.parametrize(
    "outer", [lambda f: f, sw.jit, lambda f: sw.vmap(f, axis_size=2)], ids=["eager", "jit", "vmap"]
)
def test_values_of_enclosing_functions_are_known(outer):
    """Only what depends on the unknown arguments is unknown. Flax finds the constants of a loop by it."""
    unknown = partial_eval.PartialVal.unknown(sw.core.ShapedArray((2,), np.float32))

    @outer
    def function():
        weights = sw.random.normal(sw.random.key(0), (2,))

        def body(carry):
            return [weights * 2, jnp.ones(3), carry + weights]

        _, results, _ = partial_eval.trace_to_jaxpr_nounits(wrap_init(body, debug_info=None), [unknown])
        assert [value.aval is None for value in results] == [True, True, False]
        assert results[2].aval == unknown.aval
        return weights, results[0].const

    weights, doubled = function()
    np.testing.assert_array_equal(doubled, 2 * weights)
