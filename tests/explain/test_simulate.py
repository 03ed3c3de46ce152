"""simulate: times against the formulas of the chip, meshes that are not present, traces, and bad input."""

import json
from functools import partial

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax, parallel
from shardwise.compiler.plan.hardware import chip
from shardwise.sharding import AbstractMesh, NamedSharding
from shardwise.sharding import PartitionSpec as P

BF16 = np.dtype(jnp.bfloat16)
H100 = chip("h100")


def on(mesh, spec, *shape, dtype=BF16):
    return sw.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))


def test_the_time_of_a_product_is_that_of_the_chip():
    x = sw.ShapeDtypeStruct((4096, 4096), BF16)
    run = sw.simulate(lambda x: x @ x, hardware="h100")(x)
    assert run.seconds == H100.product_time(1, 4096, 4096, 4096, 2 * 2 * 4096**2, BF16)
    assert run.flops == 2 * 4096**3
    assert run.utilization == pytest.approx(run.flops / run.seconds / 989e12)
    assert run.bounds == {
        "products": run.seconds,
        "memory": 0.0,
        "exposed communication": 0.0,
        "interference of collectives": 0.0,
        "idle": 0.0,
    }
    assert run.peak_bytes == 2 * 2 * 4096**2 + H100.product_workspace


def test_a_stream_of_elements_is_bound_by_memory():
    run = sw.simulate(lambda x: x * 2 + 1, hardware="h100")(sw.ShapeDtypeStruct((1 << 26,), np.float32))
    assert run.seconds == H100.memory_time(2 * 4 * 2**26)
    assert run.bounds["memory"] == run.seconds and run.utilization == 0
    assert "100% memory" in str(run)


def test_a_collective_overlaps_with_independent_work_and_only_with_it():
    mesh = AbstractMesh((8,), ("data",))

    def independent(x, y, z):
        return x.sum(0), y @ z

    args = on(mesh, P("data"), 8, 1 << 26), on(mesh, P(), 8192, 8192), on(mesh, P(), 8192, 8192)
    run = sw.simulate(independent, hardware="h100")(*args)
    assert run.plan.communication_seconds > 1e-4
    assert run.bounds["exposed communication"] == pytest.approx(0, abs=1e-6)
    apart = sw.simulate(independent, hardware="h100", overlap=False)(*args)
    alone = run.plan.compute_seconds - run.bounds["interference of collectives"]
    assert apart.seconds == pytest.approx(alone + run.plan.communication_seconds)
    assert 0 < run.bounds["interference of collectives"] < run.plan.communication_seconds
    assert "% interference of collectives" in str(run)

    def dependent(x, y):
        return (x.sum(0) * 2).reshape(8192, 8192) @ y

    waits = sw.simulate(dependent, hardware="h100")(args[0], args[1])
    assert waits.bounds["exposed communication"] == pytest.approx(waits.plan.communication_seconds)


def test_a_loop_takes_its_iterations():
    def once(x, w):
        return jnp.tanh(x @ w)

    def loop(x, w):
        return lax.fori_loop(0, 12, lambda _, x: once(x, w), x)

    args = sw.ShapeDtypeStruct((1024, 1024), BF16), sw.ShapeDtypeStruct((1024, 1024), BF16)
    one, many = (sw.simulate(function, hardware="a100")(*args) for function in (once, loop))
    assert many.seconds == pytest.approx(12 * one.seconds)
    assert many.flops == 12 * one.flops


def test_the_same_arguments_on_another_mesh():
    def loss(w, x):
        return jnp.sum(jnp.tanh(x @ w).astype(jnp.float32))

    small, large = AbstractMesh((4,), ("data",)), AbstractMesh((512,), ("data",))
    args = on(small, P("data"), 4096, 4096), on(small, P("data"), 1 << 16, 4096)
    step = sw.jit(sw.grad(loss))
    at = [sw.simulate(step, hardware="h100", mesh=mesh)(*args) for mesh in (small, large)]
    assert [run.plan.mesh.size for run in at] == [4, 512]
    assert at[0].flops == 128 * at[1].flops
    direct = sw.simulate(step, hardware="h100")(*args)
    assert direct.seconds == at[0].seconds


def test_arrays_of_this_machine_are_accepted(mesh):
    x = sw.device_put(np.ones((8, 4), np.float32), NamedSharding(mesh, P("data")))
    run = sw.simulate(lambda x: x.sum(), hardware="v5e")(x)
    assert run.plan.counts() == {"all_reduce": 1} and run.plan.chip.name == "v5e"


def test_the_trace_has_all_steps(tmp_path):
    mesh = AbstractMesh((8,), ("data",))
    run = sw.simulate(lambda x, w: x @ w, hardware="h100")(
        on(mesh, P("data"), 1024, 1024), on(mesh, P("data"), 1024, 1024)
    )
    run.write_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    steps = [event for event in events if event["ph"] == "X"]
    assert [(event["name"], event["tid"]) for event in steps] == [("all_gather", 1), ("dot", 0)]
    assert max(event["ts"] + event["dur"] for event in steps) == pytest.approx(run.seconds * 1e6)
    assert [event["args"]["bytes"] for event in events if event["ph"] == "C"]
    assert run.to_html().startswith("<!DOCTYPE html>")


def test_memory_that_does_not_fit_is_said():
    run = sw.simulate(lambda x: x + 1, hardware="v5e")(sw.ShapeDtypeStruct((1 << 33,), np.float32))
    assert "does not fit" in str(run)


def test_lowered_functions_need_no_arguments():
    lowered = sw.jit(lambda x: x + 1).lower(sw.ShapeDtypeStruct((1024,), np.float32))
    assert sw.simulate(lowered, hardware="h100")().seconds == H100.memory_time(2 * 4096)
    with pytest.raises(ValueError, match="a lowered or compiled function has a mesh"):
        sw.simulate(lowered, hardware="h100", mesh=AbstractMesh((2,), ("x",)))


def test_unknown_hardware_is_an_error():
    with pytest.raises(ValueError, match="unknown hardware 'h10'"):
        sw.simulate(lambda x: x, hardware="h10")


def attend(q):
    return sw.nn.dot_product_attention(q, q, q, is_causal=True, implementation="cudnn")


def test_a_function_is_traced_for_the_platform_of_the_hardware():
    """This machine has no GPU: the fused kernel of GPUs is simulated anyway, and refused where the function runs."""
    q = sw.ShapeDtypeStruct((2, 1024, 8, 64), BF16)
    step = sw.jit(attend)
    run = sw.simulate(step, hardware="h100")(q)
    assert [row.op for row in run.plan.timeline.steps] == ["fused_attention"]
    assert sw.explain(step, hardware="h100", advise=False)(q).plan.seconds == run.seconds
    for call in (sw.simulate(step, hardware="v5e"), sw.simulate(step, hardware="cpu"), step.lower):
        with pytest.raises(NotImplementedError, match=r"the platform is '(tpu|cpu)'"):
            call(q)
    mesh = AbstractMesh((4,), ("data",))
    sharded = on(mesh, P(None, None, "data"), *q.shape)
    assert sw.simulate(step, hardware="a100")(sharded).flops == run.flops / 4


def test_traces_for_another_platform_are_not_run_here():
    def choose(x):
        return lax.platform_dependent(x, cpu=lambda x: x + 1, gpu=lambda x: x @ x, tpu=lambda x: x * 2)

    step = sw.jit(choose)
    x = np.ones((4, 4), np.float32)
    names = {name: sw.simulate(step, hardware=name)(x).plan.timeline.steps[0].op for name in ("h100", "v5e", "cpu")}
    assert names == {"h100": "dot", "v5e": "mul", "cpu": "add"}
    assert np.array_equal(step(x), x + 1)
    assert sw.default_backend() == "cpu"
    assert sw.simulate(lambda x: x @ x if sw.default_backend() == "gpu" else x, hardware="h100")(x).flops == 2 * 4**3


def test_memory_over_time():
    def step(x):
        y = jnp.tanh(x @ x)
        return (y @ y).sum(0)

    nbytes = 2 * 1024**2
    run = sw.simulate(step, hardware="h100")(sw.ShapeDtypeStruct((1024, 1024), BF16))
    starts, held = zip(*run.memory, strict=True)
    assert starts[0] == 0 and list(starts) == sorted(starts) and starts[-1] < run.seconds
    assert len(held) == len(run.plan.timeline.steps) and max(held) == run.peak_bytes
    # the argument, the result, the first product, and the workspace of its library
    assert held[0] == 2 * nbytes + nbytes // 1024 + H100.product_workspace
    assert 'class="held"' in run.to_html()


def test_recomputed_products_are_no_model_flops():
    x = sw.ShapeDtypeStruct((4096, 4096), BF16)

    def loss(layer):
        def total(w, x):
            y, _ = lax.scan(lambda x, w: (layer(x, w), None), x, w)
            return y.astype(np.float32).sum()

        return sw.grad(total)

    def layer(x, w):
        return jnp.sin(x @ w)

    weights = sw.ShapeDtypeStruct((5, 4096, 4096), BF16)
    plain, recomputed = (
        sw.simulate(loss(function), hardware="h100")(weights, x) for function in (layer, sw.checkpoint(layer))
    )
    assert recomputed.model_flops == plain.model_flops == plain.flops == 3 * 5 * 2 * 4096**3
    assert recomputed.flops == 4 * 5 * 2 * 4096**3
    assert recomputed.model_utilization < recomputed.utilization
    assert "without recomputed and replicated products" in str(recomputed) and "recomputed" not in str(plain)


def test_scores_that_the_gradient_of_attention_repeats_are_no_model_flops():
    q = sw.ShapeDtypeStruct((1, 4096, 8, 128), BF16)

    def loss(q):
        return sw.nn.dot_product_attention(q, q, q, is_causal=True, implementation="cudnn").astype(np.float32).sum()

    run = sw.simulate(sw.grad(loss), hardware="h100")(q)
    product = 2 * 8 * 4096**2 * 128 / 2
    assert run.flops == pytest.approx(7 * product)
    assert run.model_flops == pytest.approx(6 * product)


def test_assumed_figures_give_an_interval():
    x = sw.ShapeDtypeStruct((4096, 4096), BF16)
    run = sw.simulate(lambda x: x @ x, hardware="h100")(x)
    shortest, longest = run.interval
    assert shortest == H100.fastest.product_time(1, 4096, 4096, 4096, 2 * 2 * 4096**2, BF16) < run.seconds
    assert longest == H100.slowest.product_time(1, 4096, 4096, 4096, 2 * 2 * 4096**2, BF16) > run.seconds
    assert (
        "assumed for h100: memory fraction, attention grad ratio, link fraction, product fraction, attention fraction"
        in str(run)
    )
    assert (
        sw.simulate(lambda x: x @ x, hardware="cpu")(x).interval[0]
        == sw.simulate(lambda x: x @ x, hardware="cpu")(x).seconds
    )


def test_a_job_takes_its_tokens_at_the_rate_of_a_call():
    mesh = AbstractMesh((4,), ("data",))
    run = sw.simulate(lambda x: x * 2, hardware="h100")(on(mesh, P("data"), 1 << 20, 512))
    job = run.job(1 << 20, 1e12)
    assert job.tokens_per_second == (1 << 20) / run.seconds
    assert job.days == pytest.approx(1e12 / (1 << 20) * run.seconds / 86400)
    assert job.device_hours == pytest.approx(96 * job.days)
    assert "tokens/s" in str(job)
    with pytest.raises(ValueError, match="must be positive, not tokens_per_call=0"):
        run.job(0, 1e12)


def test_products_of_float8_have_their_own_rate_where_the_chip_has_one():
    def product(dtype, hardware):
        x = sw.ShapeDtypeStruct((8192, 8192), dtype)
        step = partial(
            sw.lax.dot_general, dimension_numbers=(((1,), (0,)), ((), ())), preferred_element_type=jnp.bfloat16
        )
        return sw.simulate(lambda x: step(x, x), hardware=hardware)(x)

    f8, bf16 = (product(dtype, "h200") for dtype in (jnp.float8_e4m3fn, jnp.bfloat16))
    assert bf16.seconds / f8.seconds == pytest.approx(1979 * 0.71 / (989 * 0.80), rel=0.02)
    assert "float8" not in str(f8) and "f8 product fraction" in str(product(jnp.float8_e5m2, "h100"))
    assert "f8" not in str(product(jnp.bfloat16, "h100"))
    without = product(jnp.float8_e4m3fn, "a100")
    assert "products of float8 have the rate of bf16: a100 has no units for them" in str(without)
    assert without.seconds == pytest.approx(product(jnp.bfloat16, "a100").seconds, rel=0.02)


def test_imbalance_lengthens_products_and_exchanges_of_experts_that_are_on_several_devices():
    mesh = AbstractMesh((4,), ("data",))
    weights = {"gate": (8, 512, 1024), "up": (8, 512, 1024), "down": (8, 1024, 512)}

    def layer(x, router, weights):
        route = partial(parallel.mixture_of_experts, k=2, capacity_factor=1.0)
        return sw.vmap(lambda x: route(x, x @ router, weights)[0])(x)

    def runs(spec):
        on = {
            name: sw.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
            for name, shape in weights.items()
        }
        x = sw.ShapeDtypeStruct((4, 2048, 512), jnp.bfloat16, sharding=NamedSharding(mesh, P("data")))
        args = x, sw.ShapeDtypeStruct((512, 8), jnp.bfloat16, sharding=NamedSharding(mesh, P())), on
        return [sw.simulate(layer, hardware="h100", expert_imbalance=factor)(*args) for factor in (1.0, 1.5)]

    balanced, busy = runs(P("data"))
    for before, after in zip(balanced.plan.timeline.steps, busy.plan.timeline.steps, strict=True):
        is_expert = before.op in ("dot", "all_to_all") and "experts" in before.source.scope
        if is_expert or before.op in ("dot", "all_to_all", "top_k"):
            assert after.seconds == pytest.approx((1.5 if is_expert else 1.0) * before.seconds)
    assert {"dot", "all_to_all"} <= {step.op for step in balanced.plan.timeline.steps if "experts" in step.source.scope}
    assert busy.flops == balanced.flops
    alone, same = runs(P())  # each device has all experts
    assert alone.seconds == same.seconds
    with pytest.raises(ValueError, match="expert_imbalance must be at least 1"):
        sw.simulate(layer, hardware="h100", expert_imbalance=0.5)


def test_failures_of_a_job_whose_step_is_simulated():
    """Saves that `failures` does not state are copies of the arguments: 128 MB over the links."""
    mesh = AbstractMesh((64,), ("data",))
    w = on(mesh, P(), 8192, 8192)
    failures = sw.Failures(days=5, trials=2)
    run = sw.simulate(lambda w: w * 2, hardware="h100", failures=failures)(w)
    memory = next(row for row in run.goodput.rows if row.policy.name == "memory, spares")
    assert memory.schedule.snapshot_stop == 2 * 8192**2 / H100.host_link
    assert memory.schedule.checkpoint_stop == memory.schedule.snapshot_stop
    assert memory.schedule.snapshot_lag == 2 * 8192**2 / (H100.slow_link.bandwidth * H100.slow_links)
    assert run.goodput.devices == 64 and str(run).endswith(str(run.goodput))

    plain = sw.simulate(lambda w: w * 2, hardware="h100")(w)
    assert plain.goodput is None and "policy" not in str(plain)
    stated = sw.Failures(days=5, trials=2, snapshot_seconds=1.0, copy_seconds=2.0, checkpoint_seconds=3.0)
    schedule = plain.with_failures(stated).goodput.rows[-1].schedule
    assert (schedule.snapshot_stop, schedule.snapshot_lag, schedule.checkpoint_stop) == (1.0, 2.0, 3.0)
    assert plain.goodput is None
