"""The timeline against counts by hand, the definition of liveness, and XLA's memory analysis."""

from dataclasses import replace

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.partition.liveness import live_value_bytes
from shardwise.compiler.plan.hardware import chip
from shardwise.compiler.report.timeline import timeline
from shardwise.compiler.schedule.schedule import schedule
from shardwise.compiler.schedule.software_pipelining import software_pipeline
from shardwise.compiler.traffic import all_gather
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P
from tests.compiler.schedule.local_programs import DOT, GATHER, layers
from tests.compiler.schedule.local_programs import local_of as local_of_text

CPU, H200 = chip("cpu"), chip("h200")
KB = 1024


def shaped(mesh, spec, *shape):
    return sw.ShapeDtypeStruct(shape, np.float32, sharding=NamedSharding(mesh, spec))


def local_of(function, *args):
    return sw.jit(function).lower(*args)._prepared.stages.local


def steps_of(function, *args, **keywords):
    return sw.jit(function, **keywords).lower(*args).plan.timeline


def test_live_values_follow_the_definition_of_liveness(mesh):
    """Dots and collectives only: a value is live from its definition to its last use, and inputs always are."""

    def program(x, w, v):
        h = x @ w
        return (h @ v) @ (h.T @ x), h @ v @ v

    w, v = shaped(mesh, P(None, "model"), 64, 64), shaped(mesh, P("model"), 64, 64)
    local = local_of(program, shaped(mesh, P("data"), 64, 64), w, v)
    views = {e.outputs[0]: e.inputs[0] for e in local.program.equations if e.op.name == "transpose"}
    assert len(views) == 1  # the transpose is a view that a product reads
    held = []
    for place, equation in enumerate(local.program.equations):
        if equation.op.name != "transpose":
            assert equation.op.name in {"dot", "all_reduce", "all_gather", "reduce_scatter", "all_to_all"}
            later = {views.get(value, value) for other in local.program.equations[place:] for value in other.inputs}
            before = {value for other in local.program.equations[:place] for value in other.outputs} - views.keys()
            alive = before & (later | set(local.program.outputs)) | {*local.program.inputs, *equation.outputs}
            held.append(sum(value.type.nbytes for value in alive))
    assert live_value_bytes(local) == max(held)
    found = timeline(local, CPU)
    assert found.peak_bytes == max(step.held for step in found.steps) == sum(held.bytes for held in found.alive)
    assert found.steps[found.peak].held == found.peak_bytes >= max(held)


def test_elementwise_results_reuse_buffers_and_fused_chains_have_none():
    x = sw.ShapeDtypeStruct((256, KB), np.float32)  # 1 MiB
    found = steps_of(lambda x: jnp.tanh(jnp.exp(x) * 2 + 1).sum(), x)
    assert found.peak_bytes == KB * KB + 4
    found = steps_of(lambda x: jnp.tanh(x @ jnp.ones((KB, KB), np.float32)), x)
    assert (
        found.peak_bytes == (2 + 4) * KB * KB
    )  # tanh reuses the buffer of the dot; the dot reads the ones from memory
    both = steps_of(lambda x: (jnp.sin(x), jnp.cos(x)), x)
    assert both.peak_bytes == 3 * KB * KB


def test_a_reshape_is_a_view_of_its_operand():
    x = sw.ShapeDtypeStruct((256, KB), np.float32)
    found = steps_of(lambda x: jnp.sin(x).reshape(KB, 256) @ jnp.ones((256, 2), np.float32), x)
    assert found.peak_bytes == 2 * KB * KB + (KB + 256) * 2 * 4
    assert "reshape" not in [step.op for step in found.steps]


def test_donated_arguments_die_at_their_last_use(mesh):
    w, g = shaped(mesh, P("data"), 512, 512), shaped(mesh, P("data"), 512, 512)

    def update(w, g):
        return w - 0.1 * g

    shard = 512 * 512 * 4 // 4
    assert steps_of(update, w, g).peak_bytes == 3 * shard
    assert steps_of(update, w, g, donate_argnums=0).peak_bytes == 2 * shard
    kept = steps_of(lambda w, g: (w - g).sum(), w, g, donate_argnums=0)  # no output has its type
    assert kept.peak_bytes == 2 * shard + 8


def test_values_of_a_loop_body_are_live_beside_those_outside(mesh):
    w, x = shaped(mesh, P(None, "data"), 6, 64, 64), shaped(mesh, P("data"), 256, 64)

    def layers(w, x):
        return lax.scan(lambda h, w: (h @ w, None), x, w)[0]

    found = steps_of(layers, w, x)
    gather, product = found.steps
    assert (gather.op, product.op) == ("all_gather", "dot")
    assert gather.times == product.times == 6 and gather.depth == 1
    slice_, gathered, rows = 16 * 64 * 4, 64 * 64 * 4, 64 * 64 * 4
    outside = 6 * slice_ + rows + rows  # the weights, the argument, and the carry
    assert gather.held == outside + slice_ + gathered
    assert product.held == outside + gathered + rows
    assert gather.sent == 6 * 3 * slice_
    assert gather.seconds == pytest.approx(6 * CPU.collective_time(all_gather(slice_, 4), mesh.abstract, ("data",)))
    assert product.seconds == pytest.approx(6 * 2 * 64**3 / CPU.f32_flops)
    assert product.start == pytest.approx(gather.seconds)


def test_the_peak_is_at_the_users_op_where_xla_compiles_others():
    """XLA scans blocks of a cumulative sum, and stores values that the user's program lacks."""

    def function(x):
        y = jnp.tanh(x @ x)
        sums = jnp.cumsum(y, 0)
        return jnp.sum(sums * 2)

    run = sw.simulate(function, hardware="cpu")(sw.ShapeDtypeStruct((KB // 2, KB // 2), np.float32))
    found = run.plan.timeline
    assert found.steps[found.peak].op == "cumulative"


def test_the_peak_is_close_to_xlas_memory_analysis(mesh):
    """XLA schedules and fuses in its own way, so the estimate is not exact."""
    rng = np.random.default_rng(0)
    w = sw.device_put(rng.normal(size=(6, 64, 64)).astype(np.float32), NamedSharding(mesh, P(None, "data")))
    x = sw.device_put(rng.normal(size=(256, 64)).astype(np.float32), NamedSharding(mesh, P("data")))

    def loss(w, x):
        return jnp.sum(lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, w)[0])

    compiled = sw.jit(sw.grad(loss)).lower(w, x).compile()
    counted = compiled.memory_analysis()
    xla_bytes = counted.argument_size_in_bytes + counted.output_size_in_bytes + counted.temp_size_in_bytes
    assert 0.7 < compiled.plan.peak_bytes / xla_bytes < 1.4


def test_arguments_and_their_copies_are_live_in_a_program_without_ops():
    found = steps_of(lambda x: x, sw.ShapeDtypeStruct((256,), np.float32))
    assert found.steps == () and found.peak_bytes == 2 * KB
    assert [held.what for held in found.alive] == ["`x`", "a result"]


def gathered_layers(rows, chip=H200):
    """Return the steps of two layers with gathered weights on a GPU, and their gathers and products."""
    steps = timeline(local_of_text(layers(2, rows)), chip).steps
    assert [step.op for step in steps] == ["all_gather", "dot", "all_gather", "dot"]
    return steps


def test_a_collective_is_exposed_where_nothing_is_computed_beside_it():
    first, product, second, _ = gathered_layers(rows=256, chip=replace(H200, interference=0.0))
    assert first.exposed == pytest.approx(first.seconds) and first.beside == ()
    assert product.exposed == 0
    assert second.exposed == pytest.approx(second.seconds - product.seconds)
    assert second.beside == (("dot", product.source),) * 2


def test_a_collective_beside_a_long_product_is_not_exposed():
    _, product, second, _ = gathered_layers(rows=4096)
    assert second.exposed == 0 < second.seconds < product.seconds


def test_a_product_beside_a_collective_takes_longer_by_the_bytes_that_it_sends():
    alone = gathered_layers(rows=4096, chip=replace(H200, interference=0.0))
    first, product, second, last = gathered_layers(rows=4096)
    added = H200.interference * second.sent / H200.sending_rate
    assert product.slowed == pytest.approx(added) and product.seconds == pytest.approx(alone[1].seconds + added)
    assert product.idle == 0 and (first.slowed, second.slowed, last.slowed) == (0, 0, 0)
    assert last.start == pytest.approx(first.seconds + product.seconds)


def test_a_collective_in_front_of_a_loop_slows_all_kernels_of_the_loop_down():
    body = f"d: f32[4096,1024] = {DOT} c w\nreturn d\n"
    text = (
        "(x: f32[4096,1024], w: f32[6,1024,1024], v: f32[256,1024]) {\n"
        f"g: f32[1024,1024] = {GATHER} v\n"
        "z: f32[4096,1024] = scan[program=program "
        f"body(c: f32[4096,1024], w: f32[1024,1024]) {{\n{body}}}, length=6, consts=0, carried=1] x w\n"
        "return z, g\n}"
    )
    gather, product = timeline(local_of_text(text), H200).steps
    assert gather.exposed == 0 and product.times == 6
    assert product.slowed == pytest.approx(H200.interference * gather.sent / H200.sending_rate)


def test_without_overlap_every_collective_is_exposed():
    steps = timeline(local_of_text(layers(2)), CPU).steps
    assert [step.exposed == pytest.approx(step.seconds) and not step.beside for step in steps[::2]] == [True, True]


def scanned_layers(size, count):
    """Return the text of a loop over products with gathered weights."""
    body = f"g: f32[{size},{size}] = {GATHER} w\nd: f32[4096,{size}] = {DOT} c g\nreturn d\n"
    return (
        f"(x: f32[4096,{size}], w: f32[{count},{size // 4},{size}]) {{\nz: f32[4096,{size}] = scan[program=program "
        f"body(c: f32[4096,{size}], w: f32[{size // 4},{size}]) {{\n{body}}}, length={count}, consts=0, carried=1] x w"
        "\nreturn z\n}"
    )


def test_the_programs_of_a_pipelined_loop_run_together():
    """The gather of the next layer runs beside the product of this one; the first gather is before the loop."""
    count = 6
    plain = local_of_text(scanned_layers(1024, count))
    before, after = (timeline(local, H200) for local in (plain, schedule(plain, H200)))
    gather, product = after.steps
    assert before.steps[0].exposed == pytest.approx(gather.seconds) and gather.exposed == pytest.approx(
        gather.seconds / count
    )
    assert gather.seconds < product.seconds
    assert after.seconds == pytest.approx(product.seconds + gather.seconds / count)
    assert before.seconds == pytest.approx(product.seconds - product.slowed + gather.seconds)


def test_a_pipelined_loop_that_is_bound_by_its_gathers_fetches_once_per_iteration():
    """The last iteration fetches nothing: its product runs alone."""
    count = 6
    plain = local_of_text(scanned_layers(64, count))
    (equation,) = plain.program.equations
    pipelined = replace(plain, program=plain.program.with_equations([software_pipeline(plain, equation)]))
    gather, product = timeline(pipelined, H200).steps
    assert gather.seconds > product.seconds
    assert timeline(pipelined, H200).seconds == pytest.approx(
        gather.seconds + (product.seconds - product.slowed) / count
    )


def test_a_pipelined_loop_holds_what_two_iterations_gather():
    plain = local_of_text(scanned_layers(1024, 6))
    before, after = (timeline(local, H200) for local in (plain, schedule(plain, H200)))
    gathered = 1024 * 1024 * 4
    assert sum(held.bytes for held in after.alive) == after.peak_bytes
    assert [held.bytes for held in after.alive if held.what == "passed on in the loop"] == [gathered, gathered]
    assert after.peak_bytes == before.peak_bytes + gathered


def test_arguments_and_results_in_host_memory_are_copied_on_a_stream_of_their_own():
    text = f"""(x: f32[1024,1024], m: f32[1024,1024]) {{
      y: f32[1024,1024] = {DOT} x x
      d: f32[1024,1024] = copy_to_device m
      z: f32[1024,1024] = add y d
      s: f32[1024,1024] = copy_to_host z
      v: f32[1024,1024] = {DOT} z z
      return s, v
    }}"""
    local, array = local_of_text(text), 4 * KB * KB
    found = timeline(local, H200)
    product, load, add, store, last = found.steps
    assert load.copied == store.copied == array and load.seconds == store.seconds == array / H200.host_link
    assert product.start == load.start == 0 and add.start == load.seconds  # the load takes longer than the product
    assert store.start == last.start == add.start + add.seconds
    assert found.seconds == pytest.approx(store.start + store.seconds)
    assert load.beside and load.exposed == pytest.approx(load.seconds - product.seconds)
    # x and the result v, which holds y; d; z; z; z and v. Host memory is not counted.
    library = H200.product_workspace
    assert [step.held - 2 * array for step in found.steps] == [library, array, array, array, array + library]
    assert timeline(local, CPU).steps[1].seconds == 0  # one memory


def test_a_conditional_takes_the_time_of_its_longest_branch():
    x = sw.ShapeDtypeStruct((512, 512), np.float32)
    flag = sw.ShapeDtypeStruct((), np.bool_)

    def seconds(function, *args):
        return sw.simulate(function, hardware="h200")(*args).seconds

    long, short = seconds(lambda x: x @ x @ x, x), seconds(lambda x: x @ x, x)
    assert short < long
    for branches in ((lambda x: x @ x, lambda x: x @ x @ x), (lambda x: x @ x @ x, lambda x: x @ x)):
        run = sw.simulate(lambda flag, x, branches=branches: lax.cond(flag, *branches, x), hardware="h200")(flag, x)
        assert sum(step.seconds for step in run.plan.timeline.steps if step.op == "dot") == pytest.approx(long)
        assert run.flops == 2 * 2 * 512**3
