"""Parameters and names that libraries use mean what they mean in JAX: the same code runs with both packages."""

import importlib
import inspect
import io
import logging
import warnings
from contextlib import redirect_stdout

import numpy as np
import pytest

import shardwise as sw
from shardwise import ad_checkpoint
from shardwise.api.transformations import vmappable
from shardwise.extend import core
from shardwise.jax_modules.interpreters import batching, mlir

jax = pytest.importorskip("jax")
for name in ("ad_checkpoint", "extend.core", "experimental.layout"):
    importlib.import_module(f"jax.{name}")
pytestmark = pytest.mark.jax

V = np.float32([1, 2, 3])
M = np.float32([[1, 2], [3, 4]])


def test_make_jaxpr_binds_the_axes_of_axis_env():
    def shapes(m):
        traced = m.make_jaxpr(lambda x: m.lax.all_gather(x, "i"), axis_env=[("i", 4)], return_shape=True)(V)
        return traced[1].shape, traced[0].out_avals[0].shape

    assert shapes(sw) == shapes(jax) == ((4, 3), (4, 3))


@pytest.mark.parametrize("kind", ["custom_jvp", "custom_vjp"])
def test_nondiff_argnames(kind):
    def gradient(m):
        @getattr(m, kind)
        def plain(x, power, y):
            return x**power * y

        f = getattr(m, kind)(plain.fun, nondiff_argnums=(), nondiff_argnames=("power",))
        if kind == "custom_jvp":
            f.defjvp(lambda power, primals, tangents: (f(primals[0], power, primals[1]), power * tangents[0]))
        else:
            f.defvjp(lambda x, power, y: (f(x, power, y), x), lambda power, x, ct: (power * ct, 10 * ct))
        return f.nondiff_argnums, float(m.grad(lambda x: f(x, 3, 2.0))(2.0))

    assert gradient(sw) == gradient(jax) == ((1,), 3.0)


def test_checkpoint_rejects_concrete():
    for m in (jax, sw):
        for function in (m.checkpoint, m.remat):
            with pytest.raises(NotImplementedError, match="concrete"):
                function(m.numpy.sin, concrete=True)


def test_checkpoint_static_argnames():
    f = sw.checkpoint(lambda x, power: x ** (power if isinstance(power, int) else 0), static_argnames="power")
    assert [float(sw.grad(f)(2.0, 3)), float(sw.grad(f)(2.0, power=3))] == [12.0, 12.0]


def test_vmap_sum_match():
    def results(m):
        mapped = m.vmap(lambda x, y: (x * y, y, x > 1), (0, None), (None, None, None), sum_match=True)
        return [np.asarray(x).tolist() for x in mapped(V, 2.0)]

    assert results(sw) == results(jax) == [12.0, 2.0, 2]
    for m in (jax, sw):
        with pytest.raises(ValueError, match="out_axes"):
            m.vmap(lambda x: x, out_axes=None)(V)


def test_refs_that_are_not_differentiated():
    def results(m):
        ref = m.new_ref(m.numpy.zeros(3), kind="no_grad_no_remat")

        def loss(x):
            ref[...] = 2 * x
            return x.sum()

        gradient = m.grad(loss)(V)
        return m.typeof(ref).kind, gradient.tolist(), ref[...].tolist()

    assert results(sw) == results(jax) == ("no_grad_no_remat", [1, 1, 1], [2, 4, 6])


def test_functions_of_refs_with_all_elements():
    def results(m):
        ref = m.new_ref(m.numpy.arange(3))
        before = m.ref.swap(ref, None, m.numpy.ones(3, int), _function_name="f")
        m.ref.addupdate(ref, None, m.numpy.ones(3, int))
        return before.tolist(), m.ref.get(ref).tolist(), m.typeof(ref).memory_space

    assert results(sw) == results(jax) == ([0, 1, 2], [2, 2, 2], None)


def test_structs_of_refs():
    def results(m):
        struct = m.ShapeDtypeStruct((3,), np.float32, is_ref=True)

        def f(ref):
            ref[...] = ref[...] + 1
            return ref[...].sum()

        same = struct == struct.update(shape=(3,)), struct == m.ShapeDtypeStruct((3,), np.float32)
        return m.eval_shape(f, struct).shape, same, "is_ref=True" in repr(struct), m.typeof(struct).inner_aval.shape

    assert results(sw) == results(jax) == ((), (True, False), True, (3,))


def test_manual_axis_types():
    def results(m):
        varying = m.sharding.ManualAxisType(varying=frozenset({"x"}))
        mesh = m.make_mesh((2,), ("x",), axis_types=(m.sharding.AxisType.Auto,))
        p = m.sharding.PartitionSpec
        seen = []

        def body(x):
            struct = m.ShapeDtypeStruct((3,), np.float32, manual_axis_type=varying)
            seen.extend([m.typeof(x).manual_axis_type, struct.manual_axis_type, m.typeof(x).mat])
            return x

        m.jit(m.shard_map(body, mesh=mesh, in_specs=p("x"), out_specs=p("x")))(np.ones(6, np.float32))
        empty = m.typeof(m.numpy.ones(2)).manual_axis_type
        return [type == varying for type in seen], empty.empty, empty.update(varying={"x"}) == varying

    assert results(sw) == results(jax) == ([True] * 3, True, True)
    for m in (jax, sw):
        with pytest.raises(TypeError, match="manual_axis_type"):
            m.ShapeDtypeStruct((3,), np.float32, manual_axis_type="x")
        with pytest.raises(ValueError, match="varying"):
            m.sharding.ManualAxisType(varying={"x"}, unreduced={"x"})


def test_types_as_tangents():
    def results(m):
        type = m.typeof(m.numpy.ones(2))
        return type.at_least_vspace() == type, type.update(weak_type=True).weak_type, type.update_weak_type(True).shape

    assert results(sw) == results(jax) == (True, True, (2,))


def test_abstract_devices():
    def results(m):
        device = m.sharding.AbstractDevice("TPU v5p", 2, "tpu")
        mesh = m.sharding.AbstractMesh((4,), ("x",), abstract_device=device)
        plain = m.sharding.AbstractMesh((4,), ("x",))
        return (
            repr(device),
            mesh.abstract_device == device,
            mesh == plain,
            mesh.update(abstract_device=None) == plain,
            mesh.update(axis_names=("y",)).abstract_device == device,
        )

    assert results(sw) == results(jax)


def test_result_types_and_whether_they_are_weak():
    for args in [(1,), (1, 2.5), (1, V), (np.int8(1), 1j), (np.float16(1), V), (True,), (np.int32, 1)]:
        ours, theirs = (m.dtypes.result_type(*args, return_weak_type_flag=True) for m in (sw, jax))
        assert ours == theirs, args
        assert sw.dtypes.result_type(*args) == jax.dtypes.result_type(*args)
    assert sw.dtypes.issubdtype(a=np.float32, b=np.floating) is True


def test_debug_log_logs_the_line(caplog):
    caplog.set_level(logging.INFO)
    for m in (jax, sw):
        caplog.clear()
        with redirect_stdout(io.StringIO()) as printed:
            m.jit(lambda x, m=m: m.debug.log("x is {}", x))(3)
            m.jit(lambda x, m=m: m.debug.print("x is {}", x, _use_logging=True))(4)
            m.effects_barrier()
        records = [record for record in caplog.records if record.getMessage().startswith("x is")]
        assert [record.getMessage() for record in records] == ["x is 3", "x is 4"]
        assert {record.levelno for record in records} == {logging.INFO}
        assert printed.getvalue() == ""
    assert {record.pathname for record in records} == {__file__}


def test_effects_of_debug_callbacks():
    def effects(m, ordered):
        traced = m.make_jaxpr(lambda x: m.debug.print("{}", x, ordered=ordered))(1.0)
        return sorted(map(str, traced.effects)), {type(effect).__name__ for effect in traced.effects}

    for ordered in (False, True):
        assert effects(sw, ordered) == effects(jax, ordered)
    assert sw.make_jaxpr(lambda x: sw.debug.print("{}", x))(1.0).effects == {sw.debug.DebugEffect()}


def test_breakpoints_return_their_token():
    def result(m):
        commands, out = io.StringIO("c\n"), io.StringIO()
        value = m.jit(lambda x: m.debug.breakpoint(token=x, stdin=commands, stdout=out, backend="cli"))(V)
        m.effects_barrier()
        return value.tolist(), "Entering" in out.getvalue()

    assert result(sw) == result(jax) == ([1, 2, 3], True)
    for m in (jax, sw):
        with pytest.raises(ValueError, match="ordered"):
            m.debug.breakpoint(token=1.0, ordered=True)
    with pytest.raises(TypeError, match="unknown keyword 'out'"):
        sw.debug.breakpoint(out=None)


def test_jaxprs_as_functions():
    def results(m, extend_core):
        closed = m.make_jaxpr(lambda x, y: (x + y, x * y))(1.0, 2.0)
        eqn = closed.eqns[0]
        literal = extend_core.Literal(2.0, closed.in_avals[0])
        copy = eqn.replace(params=dict(eqn.params), effects=frozenset())
        return (
            [float(x) for x in extend_core.jaxpr_as_fun(closed, 3.0)(4.0)],
            [float(x) for x in extend_core.jaxpr_as_fun(closed)(3.0, 4.0)],
            (literal.val, literal.aval.shape),
            (extend_core.Var(closed.in_avals[0]).initial_qdd, extend_core.Var(closed.in_avals[0], 1, 2).final_qdd),
            (copy.primitive.name, copy.effects, copy.invars == eqn.invars),
        )

    assert results(sw, core) == results(jax, jax.extend.core)


def test_the_constructor_of_equations():
    eqn = sw.make_jaxpr(lambda x: x + x)(1.0).eqns[0]
    parts = eqn.invars, eqn.outvars, eqn.primitive, eqn.params
    assert core.JaxprEqn(*parts, effs={"e"}, source_info=eqn.source_info, ctx=None).effects == {"e"}


def test_leaks_of_a_current_trace():
    class Trace(sw.core.Trace):
        """A trace whose ops return new tracers."""

        def process_primitive(self, primitive, tracers, params):
            return sw.core.Tracer(self, sw.typeof(sw.numpy.float32(0)))

    leaked = []

    def run(check_leaks):
        with sw.check_tracer_leaks(), core.set_current_trace(Trace(), check_leaks=check_leaks):
            leaked.append(sw.lax.exp(sw.numpy.float32(0)))

    run(check_leaks=False)
    with pytest.raises(sw.errors.UnexpectedTracerError, match="Leaked trace"):
        run(check_leaks=True)


@pytest.mark.parametrize("name", ["shape", "ndim", "size"])
def test_none_counts_as_a_scalar(name):
    with pytest.warns(DeprecationWarning, match=f"{name}: None is not an array"):
        ours = getattr(sw.numpy, name)(None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert getattr(jax.numpy, name)(None) == ours


@pytest.mark.parametrize("bounds", [{"minval": np.zeros(1, np.float32)}, {"maxval": np.full((1, 1), 2, np.float32)}])
def test_uniform_with_bounds_of_one_element(bounds):
    ours, theirs = (m.random.uniform(m.random.key(0), (), **bounds) for m in (sw, jax))
    assert ours.shape == theirs.shape
    np.testing.assert_array_equal(ours, theirs)


def test_reduce_with_python_numbers():
    for operand, init, name in [(V, 0, "add"), (V, 1, "mul"), (np.arange(4, dtype=np.int32), 0, "add")]:
        ours, theirs = (m.lax.reduce(operand, init, getattr(m.lax, name), (0,)) for m in (sw, jax))
        assert (ours.dtype, ours.tolist()) == (theirs.dtype, theirs.tolist())
    for m in (jax, sw):
        with pytest.raises(TypeError, match="init"):
            m.lax.reduce(np.arange(4, dtype=np.int32), 0.5, m.lax.add, (0,))


def test_full_like_follows_a_replicated_operand():
    def results(m):
        device = m.devices()[0]
        x = m.device_put(m.numpy.ones(3), device)
        like = [m.numpy.full_like(x, 2, shape=(4,)), m.numpy.zeros_like(x), m.numpy.ones_like(x, shape=(2, 2))]
        return [(y.shape, y.devices() == {device}, y.committed) for y in like]

    assert results(sw) == results(jax)


def test_full_like_of_a_replicated_operand_is_on_its_device():
    device = sw.devices()[1]
    x = sw.device_put(sw.numpy.ones(3), device)
    assert sw.numpy.full_like(x, 2, shape=(4,)).devices() == {device}
    rows = sw.NamedSharding(sw.make_mesh((3,), ("x",)), sw.P("x"))
    assert not sw.numpy.full_like(sw.device_put(x, rows), 2, shape=(4,)).committed


def test_ufuncs_are_equal_if_they_do_the_same():
    def results(m):
        first, second, other = (m.numpy.frompyfunc(f, 2, 1) for f in (m.lax.add, m.lax.add, m.lax.mul))
        with pytest.raises(AttributeError):
            first.nin = 3
        return first == second, hash(first) == hash(second), first == other, len({first, second, other})

    assert results(sw) == results(jax) == (True, True, False, 2)


@pytest.mark.parametrize("shape, new_shape", [((0, 4), (0, 2)), ((3, 4), (0, 2)), ((3, 0), (2, 0))])
@pytest.mark.parametrize("method", ["linear", "nearest", "cubic"])
def test_images_of_size_zero(shape, new_shape, method):
    ours, theirs = (m.image.resize(np.zeros(shape, np.float32), new_shape, method) for m in (sw, jax))
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)


@pytest.mark.parametrize("diagonal", [[0, 2, 3], [0, 0, 0], [1, 1, 1], [4, 5, 6]])
def test_perturbed_tridiagonal_systems(diagonal):
    lower, upper = (np.float32([0, 1, 1]), np.float32([1, 1, 0])) if any(diagonal) else (np.zeros(3, np.float32),) * 2
    b = np.float32([[1, 2], [3, 4], [5, 6]])
    ours, theirs = (
        m.lax.linalg.tridiagonal_solve(lower, np.float32(diagonal), upper, b, perturb_singular=True) for m in (sw, jax)
    )
    assert np.isfinite(ours).all()
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_slogdet_by_qr():
    matrices = np.stack([M, M.T, np.zeros((2, 2), np.float32), np.eye(2, dtype=np.float32)])
    ours, theirs = (m.numpy.linalg.slogdet(matrices, method="qr") for m in (sw, jax))
    np.testing.assert_allclose(ours.sign, theirs.sign)
    np.testing.assert_allclose(ours.logabsdet, theirs.logabsdet, rtol=1e-5, atol=1e-6)
    gradients = [m.grad(lambda a, m=m: m.numpy.linalg.slogdet(a, method="qr")[1])(M) for m in (sw, jax)]
    np.testing.assert_allclose(*gradients, rtol=1e-4)
    for m in (jax, sw):
        with pytest.raises(NotImplementedError, match="complex"):
            m.numpy.linalg.slogdet(M.astype(np.complex64), method="qr")
        with pytest.raises(ValueError, match="qr"):
            m.numpy.linalg.slogdet(M, method="svd")


def test_forward_and_backward_passes():
    def results(m, jitted):
        fwd, bwd = m.fwd_and_bwd(lambda x, y: (x * y, 2 * y), (0, 1), has_aux=True, jitted=jitted)
        value, residuals, aux = fwd(3.0, 5.0)
        first, second = m.fwd_and_bwd(lambda x, y: x * y, 1, jitted=jitted)
        return [float(x) for x in (value, aux, *bwd(residuals, 2.0), second(first(3.0, 5.0)[1], 1.0))]

    for jitted in (False, True):
        assert results(sw, jitted) == results(jax, jitted) == [15.0, 10.0, 10.0, 6.0, 3.0]


def test_the_backward_pass_is_compiled_once():
    traces = []

    @sw.custom_vjp
    def double(x):
        return 2 * x

    double.defvjp(lambda x: (2 * x, None), lambda _, ct: (traces.append(1) or 2 * ct,))
    fwd, bwd = sw.fwd_and_bwd(double, 0)
    for x in (1.0, 2.0, 3.0):
        bwd(fwd(x)[1], 1.0)
    assert len(traces) == 1


def test_user_contexts_are_part_of_the_cache_key():
    def results(m):
        context = m.make_user_context(1)
        seen = []

        @m.jit
        def f(x):
            seen.append(context.value)
            return x * context.value

        values = [float(f(2.0))]
        for value in (3, 3, 4):
            with context(value):
                values.append(float(f(2.0)))
        context.set_global(5)
        values.append(float(f(2.0)))
        return values, seen, context.get_global()

    assert results(sw) == results(jax) == ([2, 6, 6, 8, 10], [1, 3, 4, 5], 5)


def test_former_names_of_processes():
    for name in ("host_count", "host_id", "host_ids"):
        results = []
        for m in (jax, sw):
            with pytest.warns(UserWarning, match="renamed"):
                results.append(getattr(m, name)())
        assert results[0] == results[1], name


def test_shards_and_single_device_shardings():
    for m in (jax, sw):
        x = m.numpy.ones(3)
        assert isinstance(x.addressable_shards[0], m.Shard)
        sharding = m.sharding.make_single_device_sharding(m.devices()[0])
        assert sharding == m.sharding.SingleDeviceSharding(m.devices()[0])


def test_empty_refs():
    def shape(m):
        return m.eval_shape(lambda: m.empty_ref(m.ShapeDtypeStruct((2,), np.int32))[...]).shape

    assert shape(sw) == shape(jax) == (2,)


def test_time_spans():
    def results(m):
        seen = []

        def listener(event, start, end, **metadata):
            seen.append((event, start, end, metadata))

        m.monitoring.register_event_time_span_listener(listener)
        m.monitoring.record_event_time_span("/step", 1.0, 2.5, size=3)
        m.monitoring.unregister_event_time_span_listener(listener)
        m.monitoring.record_event_time_span("/step", 2.0, 3.0)
        return seen

    assert results(sw) == results(jax) == [("/step", 1.0, 2.5, {"size": 3})]


def test_values_of_the_operands_of_a_rule():
    def results(m):
        module = m.custom_derivatives
        values = []

        @m.custom_vjp
        def f(x):
            return x["a"]

        def fwd(x):
            values.append(module.custom_vjp_primal_tree_values(x))
            return values[0]["a"], None

        f.defvjp(fwd, lambda _, ct: ({"a": ct},), symbolic_zeros=True)
        m.grad(f)({"a": 2.0})
        return list(values[0])

    assert results(sw) == results(jax) == ["a"]
    for m in (jax, sw):
        with pytest.raises(TypeError):
            m.custom_derivatives.custom_vjp_primal_tree_values([1.0])


def test_sizes_and_eager_ops():
    def results(m):
        @m.jit
        def f(x):
            with m.core.eval_context():
                size = int(m.numpy.arange(3).sum())
            return x * size

        return m.core.max_dim(2, 3), m.core.min_dim(2, 3), int(f(2))

    assert results(sw) == results(jax) == (3, 2, 6)


def test_saved_residuals():
    def origins(module, f, *args):
        with redirect_stdout(io.StringIO()) as printed:
            module.print_saved_residuals(f, *args)
        return sorted(
            line if "argument" in line else line.partition(" from ")[0] for line in printed.getvalue().splitlines()
        )

    def programs(m, module):
        def layer(w, x):
            return m.numpy.sin(module.checkpoint_name(m.numpy.sin(x @ w), "inner")).sum()

        policies = m.checkpoint_policies
        yield layer
        yield m.checkpoint(layer, policy=policies.dots_saveable)
        yield m.checkpoint(layer, policy=policies.save_only_these_names("inner"))
        yield m.checkpoint(layer)

    pairs = (sw, ad_checkpoint), (jax, jax.ad_checkpoint)
    ours, theirs = ([origins(module, f, M, M) for f in programs(m, module)] for m, module in pairs)
    assert ours == theirs


def test_decisions_of_policies():
    def gradient(m, decision):
        def f(x):
            return m.numpy.sin(m.numpy.sin(x)).sum()

        return m.grad(m.checkpoint(f, policy=lambda *args, **params: decision))(V)

    expected = jax.grad(lambda x: jax.numpy.sin(jax.numpy.sin(x)).sum())(V)
    for name in ("Recompute", "Saveable"):
        for m, module in ((jax, jax.ad_checkpoint), (sw, ad_checkpoint)):
            np.testing.assert_allclose(gradient(m, getattr(module, name)), expected, rtol=1e-6)
    for module in (jax.ad_checkpoint, ad_checkpoint):
        assert module.Offloadable("device", "pinned_host").dst == "pinned_host"
        assert module.Offloadable._fields == ("src", "dst")


def test_layouts():
    def results(m):
        layout = m.experimental.layout
        default = layout.Layout((0, 1))
        value = m.jit(lambda x: layout.with_layout_constraint(2 * x, default))(M)
        with pytest.raises(ValueError, match="major_to_minor"):
            layout.with_layout_constraint(m.numpy.ones(3), default)
        with pytest.raises(ValueError, match="Layout"):
            layout.with_layout_constraint(m.numpy.ones(3), None)
        return value.tolist(), str(layout.Layout.AUTO), repr(default), default.update(tiling=((8, 128),)).tiling

    assert results(sw) == results(jax)
    with pytest.raises(NotImplementedError, match="row-major"):
        sw.experimental.layout.with_layout_constraint(M, sw.experimental.layout.Layout((1, 0)))


def test_errors_accept_a_tracer_or_a_message():
    for name in ("TracerBoolConversionError", "TracerIntegerConversionError", "TracerArrayConversionError"):
        errors = []

        def f(x, errors=errors, name=name):
            errors.append(getattr(sw.errors, name)(x))
            return x

        sw.jit(f)(1.0)
        assert "is traced" in str(errors[0])
        assert str(getattr(sw.errors, name)("a message")) == "a message"
    assert str(sw.errors.ConcretizationTypeError(V, "the reason")).endswith("but the reason")
    assert issubclass(sw.errors.JaxprTypeError, TypeError)
    assert not issubclass(jax.errors.InconclusiveDimensionOperation, TypeError)
    assert not issubclass(sw.errors.InconclusiveDimensionOperation, TypeError)


def test_profiles_can_be_read(tmp_path):
    with sw.profiler.trace(tmp_path):
        sw.numpy.ones(3).sum().block_until_ready()
    [path] = tmp_path.rglob("*.xplane.pb")
    planes = list(sw.profiler.ProfileData.from_file(str(path)).planes)
    assert planes and isinstance(planes[0], sw.profiler.ProfilePlane)
    assert sw.profiler.ProfileData is jax.profiler.ProfileData
    assert inspect.signature(sw.profiler.register_subprocess).parameters.keys() == {"pid", "port"}


def test_deprecated_settings_are_accepted():
    for name, values in {
        "enable_checks": [True, False],
        "softmax_custom_jvp": [True, False],
        "allow_f16_reductions": [True],
        "remove_size_one_mesh_axis_from_type": [True, False],
        "array_garbage_collection_guard": [None, "allow"],
    }.items():
        for value in values:
            for m in (jax, sw):
                with warnings.catch_warnings(), getattr(m, name)(value):
                    pass
    with pytest.raises(NotImplementedError, match="sums of 16-bit floats are always allowed"):
        sw.allow_f16_reductions(False).__enter__()


def test_containers_that_vmap_maps():
    def results(m, batching):
        class Scaled:
            """An array and a factor, which is not mapped."""

            def __init__(self, array, factor):
                self.array, self.factor = array, factor

        def to_element(cont, _, x, axis):
            return x if axis is None else Scaled(cont(x.array, axis), cont(x.factor, None))

        def from_element(cont, axis_size, x, axis):
            return x if axis is None else Scaled(cont(axis_size, x.array, axis), cont(axis_size, x.factor, None))

        batching.register_vmappable(Scaled, int, int, to_element, from_element, None)

        def double(x, y):
            assert x.array.shape == (2,)
            return Scaled(2 * x.array, x.factor), (x.array * x.factor).sum() + y

        scaled, sums = m.vmap(double, in_axes=(1, 0), out_axes=(1, 0))(Scaled(m.numpy.asarray(M), 3.0), V[:2])
        return scaled.array.tolist(), float(scaled.factor), sums.tolist()

    importlib.import_module("jax.interpreters.batching")
    ours = results(sw, batching)
    assert ours == results(jax, jax.interpreters.batching) == ([[2, 4], [6, 8]], 3.0, [13, 20])
    vmappable._handlers.clear()


def test_only_integer_axes_of_containers_are_supported():
    with pytest.raises(NotImplementedError, match="register_vmappable of list"):
        batching.register_vmappable(list, tuple, int, None, None, None)


def test_options_of_lowerings():
    def results(m, primitive_type, mlir):
        def call_python(ctx, x):
            out, _, _ = mlir.emit_python_callback(
                ctx,
                lambda x: (2 * np.asarray(x),),
                None,
                [x],
                ctx.avals_in,
                ctx.avals_out,
                has_side_effect=False,
                returns_token=False,
                partitioned=False,
            )
            return out

        rules = [mlir.lower_fun(fun=lambda x: 2 * x, multiple_results=False), call_python]
        values = []
        for number, rule in enumerate(rules):
            primitive = primitive_type(f"twice_{number}")
            primitive.def_abstract_eval(lambda x: x)
            mlir.register_lowering(prim=primitive, rule=rule, platform=None, inline=False, cacheable=False)
            values.append(m.jit(lambda x, primitive=primitive: primitive.bind(x))(V).tolist())
        return values

    theirs = results(jax, jax.extend.core.Primitive, importlib.import_module("jax.interpreters.mlir"))
    assert results(sw, core.Primitive, mlir) == theirs == [[2, 4, 6]] * 2
