"""The schedule end to end: training steps on CPU devices, planned as for hardware that overlaps, against one device."""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import NamedSharding, P, lax
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.partition.liveness import peak
from shardwise.compiler.plan.hardware import CPU, chip
from shardwise.compiler.report.streams import simulated_seconds
from shardwise.compiler.schedule.schedule import schedule
from shardwise.compiler.schedule.software_pipelining import software_pipeline
from shardwise.execute import request
from shardwise.explain.hlo_schedule import read_schedule
from tests.compiler.schedule.local_programs import DOT, GATHER, REDUCE, local_of
from tests.fuzz.check import run_local

LAYERS, MODEL, HIDDEN = 6, 16, 48
ROWS = 8192  # with fewer, sending activations is cheaper than gathering weights
H200 = chip("h200")
# The rates of a GPU and the kind of the CPU: plans are those of a GPU, and XLA's CPU compiler runs them.
OVERLAPPING = replace(H200, device_kinds=CPU.device_kinds, platform="cpu")
SPECS = {  # how weights, optimizer states and the batch are sharded
    "data parallel": (P(), P(), P("data")),
    "ZeRO-1": (P(), P("data"), P("data")),
    "FSDP": (P("data"), P("data"), P("data")),
    "tensor parallel": (P(None, "model"), P(None, "model"), P()),
    "FSDP × tensor": (P("data", "model"), P("data", "model"), P("data")),
}


@pytest.fixture
def overlapping(monkeypatch):
    """Plan for CPU devices that overlap communication with compute."""
    monkeypatch.setattr(request, "chip_of", lambda kind: OVERLAPPING)


def training_step(scanned, recomputed):
    def layer(x, weights):
        up, down, scale = weights
        return x + jnp.tanh(x * scale @ up) @ down

    block = jax.checkpoint(layer) if recomputed else layer

    def loss(params, x):
        if scanned:
            x, _ = lax.scan(lambda x, weights: (block(x, weights), None), x, params)
        else:
            for number in range(LAYERS):
                x = block(x, [weight[number] for weight in params])
        return (x * x).mean()

    def step(params, means, x):
        value, grads = jax.value_and_grad(loss)(params, x)
        means = [0.9 * mean + 0.1 * grad for mean, grad in zip(means, grads, strict=True)]
        return [p - 0.1 * mean for p, mean in zip(params, means, strict=True)], means, value

    return step


def arguments():
    rng = np.random.default_rng(0)
    params = [rng.standard_normal((LAYERS, *shape)) / 4 for shape in ((MODEL, HIDDEN), (HIDDEN, MODEL), (MODEL,))]
    params = [np.float32(param) for param in params]
    return params, [np.zeros_like(param) for param in params], np.float32(rng.standard_normal((ROWS, MODEL)))


def place(mesh, how):
    weights, states, batch = SPECS[how]

    def put(array, spec, leading=1):
        spec = P(*[None] * leading, *spec[: array.ndim - leading])
        return jax.device_put(array, NamedSharding(mesh, spec))

    params, means, x = arguments()
    return [put(p, weights) for p in params], [put(m, states) for m in means], put(x, batch, 0)


def lowered_step(mesh, how, scanned, recomputed):
    params, means, x = place(mesh, how)
    outs = ([p.sharding for p in params], [m.sharding for m in means], None)
    step = jax.jit(training_step(scanned, recomputed), out_shardings=outs)
    return step.lower(params, means, x), (params, means, x)


def compiled_step(mesh, how, scanned, recomputed):
    lowered, placed = lowered_step(mesh, how, scanned, recomputed)
    return lowered.compile(), placed


@pytest.mark.table(default=5)
@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("scanned", [False, True])
@pytest.mark.parametrize("how", SPECS)
def test_a_scheduled_step_computes_what_one_device_computes(mesh, overlapping, how, scanned, recomputed):
    expected = training_step(scanned, recomputed)(*arguments())
    compiled, placed = compiled_step(mesh, how, scanned, recomputed)
    for got, wanted in zip(jax.tree.leaves(compiled(*placed)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("how", SPECS)
def test_the_schedule_sends_the_same_bytes(mesh, overlapping, how):
    plans = []
    for value in (False, True):
        with jax.config.override("schedule_communication", value):
            plans.append(lowered_step(mesh, how, True, True)[0].plan)
    assert plans[0].wire_bytes == plans[1].wire_bytes > 0


def stages_of(mesh, how, scanned, recomputed):
    return lowered_step(mesh, how, scanned, recomputed)[0]._prepared.stages


def op_names(local):
    return {equation.op.name for equation in local.program.walk()}


@pytest.mark.table(default=12)
@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("scanned", [False, True])
@pytest.mark.parametrize("how", SPECS)
def test_the_numpy_meaning_is_bitwise_the_same(mesh, overlapping, how, scanned, recomputed):
    stages = stages_of(mesh, how, scanned, recomputed)
    args = jax.tree.leaves(arguments())
    before, after = (evaluate_shards(local, args) for local in (stages.partitioned, stages.local))
    assert [array.tobytes() for array in before] == [array.tobytes() for array in after]


@pytest.mark.table(default=3)
@pytest.mark.parametrize("scanned", [False, True])
@pytest.mark.parametrize("how", ["data parallel", "FSDP", "FSDP × tensor"])
def test_the_compiled_module_has_the_planned_launches(mesh, overlapping, how, scanned):
    compiled, _ = compiled_step(mesh, how, scanned, True)
    planned, found = Counter(), Counter()
    for step in compiled.plan.timeline.steps:
        if step.collectives:
            planned[step.op.replace("_", "-"), step.collectives] += step.times
    for launch in read_schedule(compiled.as_text(), OVERLAPPING).launches:
        found[launch.collective.kind, launch.operands] += launch.times
    # XLA may combine further collectives that are alone. Its CPU compiler does not combine reduce-scatters.
    shared = {key: count for key, count in planned.items() if key[1] > 1 and key[0] != "reduce-scatter"}
    assert shared and shared.items() <= found.items()
    assert {k: n for k, n in planned.items() if k[0] == "all-gather"} == {
        k: n for k, n in found.items() if k[0] == "all-gather"
    }


def test_the_weights_of_a_scanned_layer_are_gathered_in_one_launch_one_layer_ahead(mesh, overlapping):
    local = stages_of(mesh, "FSDP", True, True).local
    loops = [equation.op for equation in local.program.equations if equation.op.name == "pipelined_scan"]
    fetched = [[equation.op for equation in op.fetch.equations if equation.op.name == "all_gather"] for op in loops]
    assert len(fetched[-1]) == 3 and len({op.launch for op in fetched[-1]}) == 1


def test_a_memory_limit_turns_off_what_does_not_fit(mesh, overlapping):
    local = stages_of(mesh, "FSDP", True, True).partitioned
    pipelined = schedule(local, OVERLAPPING)
    assert "pipelined_scan" in op_names(pipelined)
    plain = schedule(local, OVERLAPPING, peak(pipelined, (), OVERLAPPING)[0] - 1)
    assert "pipelined_scan" not in op_names(plain) and plain is not local
    held = [peak(program, (), OVERLAPPING)[0] for program in (local, plain, pipelined)]
    assert held[0] <= held[1] < held[2]
    assert schedule(local, OVERLAPPING, 1) is local


# The reduction overlaps with the second product. In a pipelined loop, the last one would be exposed.
HIDDEN_IN_THE_BODY = f"""(x: f32[512,512]) {{
  z: f32[512,512], t: f32[4,512,512] = scan[program=program body(c: f32[512,512]) {{
    h: f32[512,512] = {DOT} c c
    s: f32[512,512] = {REDUCE} h
    d: f32[512,512] = {DOT} c h
    e: f32[512,512] = {DOT} d h
    return e, s
  }}, length=4, consts=0, carried=1] x
  return z, t
}}"""


def test_a_schedule_that_is_slower_is_not_used():
    local = local_of(HIDDEN_IN_THE_BODY)
    (equation,) = local.program.equations
    pipelined = replace(local, program=local.program.with_equations([software_pipeline(local, equation)]))
    assert simulated_seconds(pipelined, H200) > 1.05 * simulated_seconds(local, H200)
    chosen = schedule(local, H200)
    assert "pipelined_scan" not in op_names(chosen)
    assert simulated_seconds(chosen, H200) == simulated_seconds(local, H200)


def test_the_setting_turns_the_schedule_off(mesh, overlapping):
    with jax.config.override("schedule_communication", False):
        stages = stages_of(mesh, "FSDP", True, True)
    assert stages.local is stages.partitioned


@pytest.mark.parametrize("scanned", [False, True])
@pytest.mark.parametrize("shape", [(2, 4), (4, 2)])
def test_nothing_is_scheduled_on_cpu(shape, scanned):
    """Modules are equal with the setting on and off, so step times are equal too."""
    mesh = jax.make_mesh(shape, ("data", "model"))
    texts = []
    for value in (False, True):
        with jax.config.override("schedule_communication", value):
            texts.append(lowered_step(mesh, "FSDP", scanned, recomputed=True)[0].as_text())
    assert texts[0] == texts[1]


@pytest.mark.parametrize("dtype", [ml_dtypes.int2, ml_dtypes.int4, np.bool_, ml_dtypes.bfloat16, np.complex64])
def test_gathers_of_every_dtype_share_a_launch(mesh, overlapping, dtype):
    x, y = np.eye(8).astype(dtype), np.eye(8)[::-1].astype(np.float32)
    placed = [
        jax.device_put(x, NamedSharding(mesh, P("data"))),
        jax.device_put(y, NamedSharding(mesh, P(None, "data"))),
    ]
    gather = jax.jit(lambda *arrays: arrays, out_shardings=NamedSharding(mesh, P())).lower(*placed)
    assert len(set(gather._prepared.stages.local.launches.values())) == 1
    for got, wanted in zip(gather.compile()(*placed), (x, y), strict=True):
        np.testing.assert_array_equal(got, wanted)


TRANSPOSED = """(x: bf16[3,5], y: bf16[6,5]) {{
  s: bf16[3,5] = add x x
  t: bf16[5,3] = transpose[permutation=(1, 0)] s
  g: bf16[20,3] = {gather} t
  h: bf16[24,5] = {gather} y
  r: bf16[3,20] = transpose[permutation=(1, 0)] g
  return r, h
}}"""


def test_transposed_operands_of_a_shared_launch_are_gathered_right():
    local = local_of(TRANSPOSED.format(gather=GATHER.replace("]", ", launch=0]")))
    args = [np.arange(type.size).reshape(type.shape).astype(type.dtype) for type in local.program.in_types]
    for got, wanted in zip(run_local(local, args), evaluate_shards(local, args), strict=True):
        np.testing.assert_array_equal(got, wanted)


DIGEST = """
import hashlib
import shardwise as jax
from tests.compiler.schedule import test_schedule as steps
steps.request.chip_of = lambda kind: steps.OVERLAPPING
mesh = jax.make_mesh((4, 2), ("data", "model"))
for how in ("FSDP", "FSDP × tensor"):
    for scanned in (False, True):
        text = steps.stages_of(mesh, how, scanned, True).module.text
        print(hashlib.sha256(text.encode()).hexdigest())
"""


def test_all_processes_make_the_same_schedule():
    digests = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", DIGEST]
        found = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        digests.append(found.stdout.split())
    assert digests[0] == digests[1] and len(set(digests[0])) == 4
