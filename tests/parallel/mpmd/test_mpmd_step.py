"""mpmd_step: ordinary training steps as pipelines compute what one device computes; steps that cannot be divided."""

from functools import partial

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import P, lax
from shardwise.errors import StrategyError
from shardwise.parallel import StageRows, mpmd_step, stage_boundary
from shardwise.sharding import AbstractMesh, NamedSharding
from shardwise.tree_util import tree_leaves, tree_map
from tests.parallel.mpmd import training_steps
from tests.parallel.mpmd.training_steps import LAYERS, WIDTH, adam_state, batch, initial_params, sgd


def meshes(ranks, size=1):
    devices = sw.devices()
    return [sw.make_mesh((size,), ("data",), devices=devices[r * size : (r + 1) * size]) for r in range(ranks)]


def check(step, args, calls=3, state=1, **options):
    """Compare calls of a step with one device; the first `state` arguments are replaced by the first results."""
    train = mpmd_step(step, *args, **{"meshes": meshes(2), "microbatches": 4, **options})
    expected_args, rest = args[:state], args[state:]
    placed = args[:state]
    for _ in range(calls):
        results, expected = train(*placed, *rest), sw.jit(step)(*expected_args, *rest)
        is_tuple = isinstance(results, tuple)
        placed, expected_args = (results[:state], expected[:state]) if is_tuple else ((results,), (expected,))
    gathered = train.gather(results)
    assert sw.tree_util.tree_structure(gathered) == sw.tree_util.tree_structure(expected)
    tree_map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), gathered, expected)
    return train, results


STEPS = {
    "adam": (training_steps.clipped_adam, (adam_state(), *batch(), 0.01), {}),
    "factored": (training_steps.factored, (*training_steps.factored_state(), *batch()), {"state": 3}),
    "sgd": (sgd, (initial_params(), *batch()), {}),
    "loss scale": (
        training_steps.loss_scaled,
        ({"params": initial_params(), "average": initial_params(), "scale": jnp.float32(8)}, *batch()),
        {},
    ),
}


@pytest.mark.table(default=2)
@pytest.mark.parametrize("name", STEPS)
def test_steps_compute_what_one_device_computes(name):
    step, args, options = STEPS[name]
    check(step, args, **options)


SCHEDULES = [
    ("zb-h1", 4, {}),
    ("1f1b", 3, {"stages": [1, 3, 1]}),
    ("zb-v", 2, {}),
    ("interleaved", 2, {"stages": 4}),
    ("dualpipe", 2, {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "ranks", "options"), SCHEDULES)
def test_schedules(schedule, ranks, options):
    args = (adam_state(), *batch(), 0.01)
    train, (state, metrics) = check(
        training_steps.clipped_adam, args, schedule=schedule, meshes=meshes(ranks), **options
    )
    counts = train.model.layers
    assert sum(counts) == LAYERS
    assert isinstance(state["mean"]["layers"]["up"], StageRows)
    assert [part.shape[0] for part in state["mean"]["layers"]["up"].parts] == list(counts)
    assert len(state["count"].sharding.device_set) == ranks  # the number is on all devices
    assert len(metrics["norm"].sharding.device_set) == ranks


@pytest.mark.table(default=1)
@pytest.mark.parametrize(("schedule", "ranks", "size"), [("1f1b", 2, 2), ("zb-v", 2, 1), ("zb-h1", 3, 1)])
def test_several_stages_read_a_parameter(schedule, ranks, size):
    options = {"meshes": meshes(ranks, size), "schedule": schedule, "spec": P("data")}
    train, (new, _) = check(training_steps.tied_momentum, (training_steps.tied_state(), *batch()), **options)
    last = len(train.model.stages) - 1
    assert (0, last) in train.model.users
    for name in ("params", "mean"):
        assert new[name]["table"].sharding.mesh == options["meshes"][0]  # the first of them has it


@pytest.mark.table(default=2)
@pytest.mark.parametrize(
    ("schedule", "ranks", "size"), [("1f1b", 2, 2), ("dualpipe", 2, 2), ("zb-h1", 3, 1), ("zb-v", 2, 1)]
)
def test_auxiliary_results(schedule, ranks, size):
    options = {"meshes": meshes(ranks, size), "schedule": schedule, "spec": P("data")}
    _, (_, metrics) = check(training_steps.with_metrics, (initial_params(), *batch()), **options)
    assert metrics["correct"].dtype == np.int32
    assert len(metrics["nll"].sharding.device_set) == ranks * size  # every process can read it


def test_large_auxiliary_results_stay_on_the_mesh_of_the_last_stage():
    def step(params, tokens, targets):
        def loss(params):
            x = stage_boundary(params["table"][tokens])
            logits = x @ params["head"]
            log_p = sw.nn.log_softmax(logits)
            return -jnp.take_along_axis(log_p, targets[..., None], -1).mean(), logits

        (value, logits), gradients = sw.value_and_grad(loss, has_aux=True)(params)
        return tree_map(lambda p, g: p - g, params, gradients), (value, logits)

    params = {name: initial_params()[name] for name in ("table", "head")}
    tokens, targets = (x.reshape(8, 3).repeat(8, 1) for x in batch())
    both = meshes(2, 2)
    _, (_, (_, logits)) = check(step, (params, tokens, targets), meshes=both, spec=P("data"))
    assert logits.shape == (8, 24, 32) and logits.sharding == NamedSharding(both[1], P("data"))


@pytest.mark.parametrize("schedule", ["1f1b", "dualpipe"])
def test_auxiliary_results_of_layers_divide_among_the_stages(schedule):
    args = training_steps.biased_state(), *batch()
    _, (new, (_, squares)) = check(
        training_steps.with_rates_of_layers, args, meshes=meshes(2, 2), spec=P("data"), schedule=schedule
    )
    assert [part.shape for part in squares.parts] == [part.shape for part in new["bias"].parts] == [(3,), (2,)]


def test_auxiliary_results_of_other_stages_and_of_targets():
    def step(params, x, labels):
        def loss(params):
            y = stage_boundary(jnp.tanh(x @ params["first"])) @ params["second"]
            weights = jnp.where(x[:, 0] > 0, labels, 1.0)
            return (y.mean(1) * weights).mean(), (params["first"], weights, x.sum() - labels.sum())

        (value, auxiliary), gradients = sw.value_and_grad(loss, has_aux=True)(params)
        return tree_map(lambda p, g: p - g, params, gradients), (value, *auxiliary)

    check(step, (*boundary_args(4), np.linspace(0, 1, 8, dtype=np.float32)))


def test_microbatches_of_one_row():
    def step_with_predictions(squeeze):
        def step(params, x):
            def loss(params):
                y = squeeze(stage_boundary(jnp.tanh(x @ params["first"])) @ params["second"][:, :1])
                return (y**2).mean(), y

            (value, y), gradients = sw.value_and_grad(loss, has_aux=True)(params)
            return tree_map(lambda p, g: p - g, params, gradients), (value, y)

        return step

    check(step_with_predictions(partial(jnp.squeeze, axis=1)), boundary_args(4), microbatches=8)
    with pytest.raises(StrategyError, match=r"at .*test_mpmd_step.py.* computes a microbatch of one row"):
        mpmd_step(step_with_predictions(jnp.squeeze), *boundary_args(4), meshes=meshes(2), microbatches=8)


@pytest.mark.slow
def test_state_keeps_its_shardings():
    both = meshes(2, 4)
    state, (tokens, targets) = adam_state(), batch()
    rows = NamedSharding(both[0], P("data"))
    state["params"]["layers"]["up"] = sw.device_put(
        state["params"]["layers"]["up"], NamedSharding(both[0], P(None, "data"))
    )
    state["mean"]["head"] = sw.device_put(state["mean"]["head"], rows)
    _, (new, _) = check(
        training_steps.clipped_adam, (state, tokens, targets, 0.01), meshes=both, spec=P("data"), calls=2
    )
    for stage, part in enumerate(new["params"]["layers"]["up"].parts):
        assert part.sharding == NamedSharding(both[stage], P(None, "data"))
    assert new["mean"]["head"].sharding == NamedSharding(both[1], P("data"))
    assert new["params"]["table"].sharding.mesh == both[0]


def test_placed_state_is_not_copied_and_may_be_donated():
    step = sw.jit(sgd, donate_argnums=0)
    args = (initial_params(), *batch())
    train = mpmd_step(step, *args, meshes=meshes(2), microbatches=4)
    placed, *rest = train.place(*args)
    assert isinstance(placed["layers"]["up"], StageRows)
    new, _ = train(placed, *rest)
    assert all(leaf.is_deleted() for leaf in tree_leaves(placed))
    assert not any(leaf.is_deleted() for leaf in tree_leaves(new))
    kept, _ = mpmd_step(sgd, *args, meshes=meshes(2), microbatches=4)(new, *rest)
    assert not any(leaf.is_deleted() for leaf in tree_leaves(new))
    assert kept["head"].shape == new["head"].shape


def boundary_step(after):
    """A step of two marked stages; `after` combines parameters and gradients."""

    def step(params, x):
        def loss(params):
            y = jnp.tanh(x @ params["first"])
            return (stage_boundary(y) @ params["second"]).mean()

        value, gradients = sw.value_and_grad(loss)(params)
        return after(params, gradients), value

    return step


def boundary_args(width):
    rng = np.random.default_rng(0)
    params = {name: rng.normal(size=(width, width)).astype(np.float32) for name in ("first", "second")}
    return params, rng.normal(size=(8, width)).astype(np.float32)


def normalized(params, gradients):
    norm = jnp.sqrt(sum((g**2).sum() for g in tree_leaves(gradients)))
    return tree_map(lambda p, g: p - g / norm, params, gradients)


def of_both_stages(params, gradients):
    return {**params, "second": params["second"] - gradients["first"].T @ gradients["second"]}


@pytest.mark.parametrize("after", [normalized, of_both_stages])
def test_marked_boundaries(after):
    _, (new, _) = check(boundary_step(after), boundary_args(4))
    assert [new[name].sharding.mesh for name in ("first", "second")] == meshes(2)


def test_stages_do_not_exchange_large_arrays():
    with pytest.raises(
        StrategyError, match=r"`(transpose|dot).*reads arrays of several stages, one of type f32\[80,80\]"
    ):
        mpmd_step(boundary_step(of_both_stages), *boundary_args(80), meshes=meshes(2), microbatches=4)


def test_only_the_last_stage_gets_targets():
    params, (tokens, targets) = initial_params(), batch()
    model = mpmd_step(sgd, params, tokens, targets, meshes=meshes(2), microbatches=4).model
    parts = model.split(tree_leaves(params))
    (activations,) = sw.eval_shape(model.stages[0], parts[0], [tokens[:6]])
    assert activations.shape == (6, WIDTH)  # the targets are not passed through the first stage
    assert sw.eval_shape(model.stages[1], parts[1], [activations], [targets[:6]]).shape == ()


@pytest.mark.parametrize("in_one_scan", [True, False])
def test_a_moving_average_of_layers_in_the_loss(in_one_scan):
    """The loss compares a model with the moving average of its parameters, its teacher."""

    def step(state, tokens, targets):
        def layer(x, w):
            return x + jnp.tanh(x @ w["up"]) @ w["down"], None

        def both(carry, layers):
            return tuple(layer(x, w)[0] for x, w in zip(carry, layers, strict=True)), None

        def loss(params):
            pair = params, state["teacher"]
            carry, layers = [each["table"][tokens] for each in pair], [each["layers"] for each in pair]
            if in_one_scan:
                (x, y), _ = lax.scan(both, tuple(carry), tuple(layers))
            else:
                x, y = (lax.scan(layer, *each)[0] for each in zip(carry, layers, strict=True))
            return ((x - y) ** 2).mean()

        value, gradients = sw.value_and_grad(loss)(state["params"])
        params = tree_map(lambda p, g: p - 0.1 * g, state["params"], gradients)
        teacher = tree_map(lambda t, p: 0.9 * t + 0.1 * p, state["teacher"], params)
        return {"params": params, "teacher": teacher}, value

    args = {"params": initial_params(), "teacher": initial_params(2)}, *batch()
    if in_one_scan:
        _, (new, _) = check(step, args)
        assert [part.shape[0] for part in new["teacher"]["layers"]["up"].parts] == [3, 2]
    else:
        with pytest.raises(StrategyError, match=r"argument 0\['teacher'\]\['layers'\]\['down'\] .* in one loop"):
            mpmd_step(step, *args, meshes=meshes(2), microbatches=4)


@pytest.mark.parametrize("trained", ["adapter", "head"])
def test_frozen_layers_are_divided(trained):
    def step(state, tokens, targets):
        def loss(part):
            whole = {**state, trained: part}
            layers = {**whole["layers"], "up": whole["layers"]["up"] + whole["adapter"]}
            return training_steps.loss_of({**whole, "layers": layers}, tokens, targets)

        value, gradient = sw.value_and_grad(loss)(state[trained])
        return {**state, trained: state[trained] - gradient}, value

    state = {**initial_params(), "adapter": jnp.zeros((LAYERS, 1, 16))}
    _, (new, _) = check(step, (state, *batch()))
    assert [part.shape for part in new["layers"]["down"].parts] == [(3, 16, WIDTH), (2, 16, WIDTH)]


def test_simulation_needs_no_devices():
    args = sw.eval_shape(lambda: (initial_params(), *map(jnp.asarray, batch())))
    train = mpmd_step(sgd, *args, meshes=[AbstractMesh((2,), ("data",))] * 2, microbatches=4, spec=P("data"))
    run = train.simulate("h100")(*args)
    assert run.fits and len(run.stages) == 2
    with pytest.raises(StrategyError, match="abstract mesh, which has no devices"):
        train(*args)


def test_simulation_with_a_number():
    def step(params, tokens, targets, temperature):
        def loss(params):
            return training_steps.loss_of({**params, "head": params["head"] / temperature}, tokens, targets)

        return tree_map(lambda p, g: p - g, params, sw.grad(loss)(params))

    args = initial_params(), *batch(), 2.0
    train = mpmd_step(step, *args, meshes=[AbstractMesh((2,), ("data",))] * 2, microbatches=4, spec=P("data"))
    assert train.simulate("h100")(*args).fits


def step_with(after):
    """A step that does something with the gradients."""

    def step(params, tokens, targets):
        loss, gradients = sw.value_and_grad(training_steps.loss_of)(params, tokens, targets)
        return after(params, gradients), loss

    return step


def moved(params, gradients, by):
    return {**params, "layers": {**params["layers"], "up": params["layers"]["up"] - by}}


def layer_mixing(params, gradients):
    return moved(params, gradients, jnp.cumsum(gradients["layers"]["up"], 0))


def flattened(params, gradients):
    flat = jnp.concatenate([g.ravel() for g in tree_leaves(gradients)])
    return {**params, "head": params["head"] - flat[:256].reshape(8, 32)}


def reads_layers(params, gradients):
    stack = gradients["layers"]["up"]
    return moved(params, gradients, stack ** len(stack))


def twice(params, tokens, targets):
    first = sw.grad(training_steps.loss_of)(params, tokens, targets)
    second = sw.grad(training_steps.loss_of)(first, tokens, targets)
    return tree_map(lambda p, g: p - g, params, second)


def cast_before(params, tokens, targets):
    low = tree_map(lambda p: p.astype(jnp.bfloat16), params)
    gradients = sw.grad(training_steps.loss_of)(low, tokens, targets)
    return tree_map(lambda p, g: p - g, params, gradients)


def accumulated(params, tokens, targets):
    def body(total, rows):
        gradients = sw.grad(training_steps.loss_of)(params, *rows)
        return tree_map(jnp.add, total, gradients), None

    split = tree_map(lambda x: x.reshape(4, -1), (tokens, targets))
    total, _ = lax.scan(body, training_steps.zeros_like(params), split)
    return tree_map(lambda p, g: p - g / 4, params, total)


def with_deviation(params, tokens, targets):
    def loss(params):
        value = training_steps.loss_of(params, tokens, targets)
        return value, params["table"][tokens].std()

    (_, deviation), gradients = sw.value_and_grad(loss, has_aux=True)(params)
    return tree_map(lambda p, g: p - g, params, gradients), deviation


def summed(params, tokens, targets):
    loss, gradients = sw.value_and_grad(lambda p: len(tokens) * training_steps.loss_of(p, tokens, targets))(params)
    return tree_map(lambda p, g: p - g, params, gradients), loss


def clipped_in_the_loss(params, tokens, targets):
    clip = sw.custom_vjp(lambda x: x)
    clip.defvjp(lambda x: (x, None), lambda _, ct: (jnp.clip(ct, -0.01, 0.01),))

    def loss(params):
        return training_steps.loss_of({**params, "head": clip(params["head"])}, tokens, targets)

    return tree_map(lambda p, g: p - g, params, sw.grad(loss)(params))


def divided_by_at_most_twelve(params, tokens, targets):
    def loss(params):
        return len(tokens) * training_steps.loss_of(params, tokens, targets) / min(len(tokens), 12)

    value, gradients = sw.value_and_grad(loss)(params)
    return tree_map(lambda p, g: p - g, params, gradients), value


def constant_weights(params, tokens, targets):
    def loss(params):
        return training_steps.loss_of(params, tokens, targets) + (params["table"][tokens, 0] * np.ones(24)).mean()

    return tree_map(lambda p, g: p - g, params, sw.grad(loss)(params))


def summed_in_a_loop(params, gradients):
    def body(total, g):
        return total + (g**2).sum(), None

    norm, _ = lax.scan(body, 0.0, gradients["layers"]["up"])
    return tree_map(lambda p, g: p - g / norm, params, gradients)


def normalized_by_groups(params, groups, tokens, targets):
    gradients = sw.grad(training_steps.loss_of)(params, tokens, targets)
    norms = jnp.ones(2).at[groups].add((gradients["layers"]["up"] ** 2).sum((1, 2)))
    return tree_map(lambda p, g: p - g / norms.sum(), params, gradients), groups


def with_metric(of_stack):
    """A step with a metric of the gradients of stacked weights."""

    def step(params, tokens, targets):
        gradients = sw.grad(training_steps.loss_of)(params, tokens, targets)
        return tree_map(lambda p, g: p - g, params, gradients), of_stack(gradients["layers"]["up"])

    return step


WRONG = {
    "layers are mixed": (step_with(layer_mixing), {}, "`cumulative` at .*test_mpmd_step.py.* mixes the layers"),
    "all gradients in one vector": (step_with(flattened), {}, "mixes the layers|arrays of several stages"),
    "number of layers": (step_with(reads_layers), {}, "depends on the number of layers"),
    "two losses": (twice, {}, "differentiates .* too: a step has one loss"),
    "no loss": (lambda params, tokens, targets: params, {}, "differentiates no loss"),
    "computed arguments": (cast_before, {}, "with respect to a computed array of type bf16"),
    "microbatches in the step": (accumulated, {}, "needs no loop over them"),
    "auxiliary results that mix rows": (with_deviation, {}, "an auxiliary result depends on it"),
    "sum": (summed, {}, "is a sum over the rows"),
    "a mean for some numbers of rows": (divided_by_at_most_twelve, {}, "is not the mean over the rows"),
    "layers in dim 1": (with_metric(lambda g: g.sum(1).T), {}, r"result of type f32\[16,5\] .*layers are not dim 0"),
    "flattened layers": (with_metric(jnp.ravel), {}, r"result of type f32\[640\] .*layers are not dim 0"),
    "a row's weight in a constant": (
        constant_weights,
        {},
        "(?s)does not accept 6 rows .*batch are argument 1, argument 2",
    ),
    "sum over layers in a loop": (step_with(summed_in_a_loop), {}, "`scan` at .* mixes the layers"),
    "clipped gradients in the loss": (clipped_in_the_loss, {}, "backward rule of .* is not linear"),
    "indivisible rows": (sgd, {"microbatches": 7}, "not divisible"),
    "too many stages": (sgd, {"stages": 9}, "stages=9"),
    "wrong position": (sgd, {"batch_argnums": 3}, "batch_argnums has 3"),
    "no batch": (sgd, {"batch_argnums": ()}, "reads no batch"),
    "parameters as batch": (sgd, {"batch_argnums": (0, 1, 2)}, "differ in their rows"),
    "static arguments": (
        sw.jit(lambda p, t, y, n=1: sgd(p, t, y), static_argnums=3),
        {},
        "static arguments: bind them",
    ),
    "shardings of jit": (
        sw.jit(sgd, in_shardings=NamedSharding(sw.make_mesh((8,), ("data",)), P())),
        {},
        "is jitted with `in_shardings`",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors(name):
    step, options, message = WRONG[name]
    with pytest.raises(StrategyError, match=message):
        mpmd_step(step, initial_params(), *batch(), **{"meshes": meshes(2), "microbatches": 4, **options})


OPTIONS = {
    "one mesh": ({"meshes": meshes(2)[0]}, "meshes must be a sequence of meshes, not Mesh"),
    "no meshes": ({"meshes": None}, "meshes must be a sequence of meshes, not None"),
    "no schedule": ({"schedule": None}, "schedule must be a TaskSchedule or the name of a schedule, not None"),
    "no schedule of given stages": ({"schedule": None, "stages": 2}, "schedule must be a TaskSchedule or the name"),
    "no microbatches": ({"microbatches": 0, "stages": 2}, "microbatches must be a positive integer, not 0"),
    "microbatches that are a float": ({"microbatches": 4.0, "stages": 2}, "microbatches must be a positive integer"),
    "stages that are a float": ({"stages": 2.0}, "stages=2.0 does not divide"),
    "a position that is a float": ({"batch_argnums": 1.0}, "batch_argnums has 1.0"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_another_type(name):
    options, message = OPTIONS[name]
    with pytest.raises(StrategyError, match=message):
        mpmd_step(sgd, initial_params(), *batch(), **{"meshes": meshes(2), "microbatches": 4, **options})


def test_options_may_be_integers_of_numpy():
    four, two, one = map(np.int64, (4, 2, 1))
    options = {"microbatches": four, "stages": two, "batch_argnums": (one, two)}
    train = mpmd_step(sgd, initial_params(), *batch(), meshes=meshes(2), **options)
    assert train.model.layers == (3, 2)
    options = {"microbatches": 4, "stages": np.array([1, 4]), "batch_argnums": np.array([1, 2])}
    assert mpmd_step(sgd, initial_params(), *batch(), meshes=meshes(2), **options).model.layers == (1, 4)


def test_sums_of_layers_by_group_with_a_term():
    args = initial_params(), np.array([0, 1, 0, 1, 0]), *batch()
    with pytest.raises(StrategyError, match=r"`scatter.* mixes the layers"):
        mpmd_step(normalized_by_groups, *args, meshes=meshes(2), microbatches=4)


def test_state_with_layers_in_dim_1():
    def step(state, tokens, targets):
        gradients = sw.grad(training_steps.loss_of)(state["params"], tokens, targets)
        mean = state["mean"] + jnp.moveaxis(gradients["layers"]["up"], 0, 1)
        params = moved(state["params"], gradients, jnp.moveaxis(mean, 1, 0))
        return {"params": params, "mean": mean}

    state = {"params": initial_params(), "mean": jnp.zeros((WIDTH, LAYERS, 16))}
    with pytest.raises(StrategyError, match=r"argument of type f32\[8,5,16\] .*layers are not dim 0"):
        mpmd_step(step, state, *batch(), meshes=meshes(2), microbatches=4)


def test_calls_with_other_arguments():
    train = mpmd_step(sgd, initial_params(), *batch(), meshes=meshes(2), microbatches=4)
    with pytest.raises(StrategyError, match=r"argument 1 .*is a i32\[12\], not a i32\[24\]"):
        train(initial_params(), *(x[:12] for x in batch()))
    with pytest.raises(StrategyError, match="structure"):
        train(initial_params()["layers"], *batch())
    with pytest.raises(StrategyError, match=r"mpmd_step: `sgd` .*launches many programs"):
        sw.jit(train)(initial_params(), *batch())
    with pytest.raises(StrategyError, match="launches many programs"):
        sw.jit(train)(*train.place(initial_params(), *batch()))
    assert repr(train) == "<sgd as MPMD pipeline of 2 stages on 2 meshes, 1f1b, 4 microbatches>"


@pytest.mark.slow
def test_rows_that_are_divided_in_another_way():
    args = initial_params(), *batch()
    train = mpmd_step(sgd, *args, meshes=meshes(2), microbatches=4, stages=[2, 3])
    params, _ = train(*args)
    up, head = params["layers"]["up"], params["head"]
    for changed in (StageRows(up.parts[::-1]), StageRows(up.parts[:1]), StageRows([]), StageRows([*up.parts, head])):
        with pytest.raises(
            StrategyError, match=r"argument 0\['layers'\]\['up'\] .*not rows of the types f32\[2,8,16\]"
        ):
            train({**params, "layers": {**params["layers"], "up": changed}}, *args[1:])
    with pytest.raises(StrategyError, match=r"\['head'\] .* is StageRows\(float32\[8,32\]\), not a f32\[8,32\]"):
        train({**params, "head": StageRows([head])}, *args[1:])
    other = mpmd_step(sgd, *args, meshes=meshes(2), microbatches=4, stages=[3, 2])
    with pytest.raises(StrategyError, match="To pass the state of another pipeline"):
        other(params, *args[1:])
    expected, _ = train(params, *args[1:])
    result, _ = other(train.gather(params), *args[1:])
    tree_map(partial(np.testing.assert_allclose, rtol=1e-4), other.gather(result), train.gather(expected))


def test_rows_on_other_devices_are_moved():
    args = initial_params(), *batch()
    train = mpmd_step(sgd, *args, meshes=meshes(2), microbatches=4)
    params, _ = train(*args)
    moved_step = mpmd_step(sgd, *args, meshes=meshes(2)[::-1], microbatches=4)
    result, _ = moved_step(params, *args[1:])
    expected, _ = train(params, *args[1:])
    tree_map(partial(np.testing.assert_allclose, rtol=1e-4), moved_step.gather(result), train.gather(expected))
    assert result["layers"]["up"].parts[0].sharding.mesh == meshes(2)[1]
    numpy_parts = {name: StageRows([np.asarray(part) for part in x.parts]) for name, x in params["layers"].items()}
    result, _ = train({**params, "layers": numpy_parts}, *args[1:])
    tree_map(partial(np.testing.assert_allclose, rtol=1e-4), train.gather(result), train.gather(expected))


def test_keywords_are_bound_by_partial():
    def step(params, tokens, targets, rate):
        loss, gradients = sw.value_and_grad(training_steps.loss_of)(params, tokens, targets)
        return tree_map(lambda p, g: p - rate * g, params, gradients), loss

    check(partial(step, rate=0.1), (initial_params(), *batch()))
