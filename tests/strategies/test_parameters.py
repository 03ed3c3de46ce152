"""Strategies for parameters: the shardings they choose, and training steps with them against one device."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import P, strategies
from shardwise.errors import StrategyError

RULES = {r"up/kernel": P(None, "model"), r"up/bias": P("model"), r"down/kernel": P("model", None)}
LAYERS = 2


def init(key, width=32, hidden=64):
    layers = []
    for index in range(LAYERS):
        up, down = sw.random.split(sw.random.fold_in(key, index))
        layers.append(
            {
                "up": {"kernel": sw.random.normal(up, (width, hidden)) * 0.1, "bias": jnp.zeros(hidden)},
                "down": {"kernel": sw.random.normal(down, (hidden, width)) * 0.1},
            }
        )
    return {"layers": layers}


def loss_of(params, x, y):
    for layer in params["layers"]:
        x = x + jnp.tanh(x @ layer["up"]["kernel"] + layer["up"]["bias"]) @ layer["down"]["kernel"]
    return jnp.mean((x - y) ** 2)


def state_of(params):
    return {"count": jnp.zeros((), jnp.int32), "mu": sw.tree.map(jnp.zeros_like, params)}


def train_step(params, state, x, y):
    loss, gradients = sw.value_and_grad(loss_of)(params, x, y)
    mu = sw.tree.map(lambda m, g: 0.9 * m + g, state["mu"], gradients)
    params = sw.tree.map(lambda p, m: p - 0.1 * m, params, mu)
    return params, {"count": state["count"] + 1, "mu": mu}, loss


def batch():
    rng = np.random.default_rng(0)
    return rng.standard_normal((16, 32), np.float32), rng.standard_normal((16, 32), np.float32)


def losses(params, state, x, y, shardings=None):
    out = None if shardings is None else (shardings.params, shardings.state, None)
    step, found = sw.jit(train_step, **({} if out is None else {"out_shardings": out})), []
    for _ in range(4):
        params, state, loss = step(params, state, x, y)
        found.append(float(loss))
    return found, params, state


@pytest.fixture(scope="module")
def expected():
    params = init(sw.random.key(0))
    return losses(params, state_of(params), *batch())[0]


def choose(kind, mesh, types, state):
    """Return the shardings of a strategy by its name."""
    if kind == "data parallel":
        whole = strategies.data_parallel(types, mesh)
        return strategies.Zero(whole, whole, strategies.like_parameters(state, types, whole))
    both_dims = {r"up/kernel": P("data", "model"), r"up/bias": P("model"), r"down/kernel": P("model", "data")}
    tensor = strategies.tensor_parallel(types, mesh, both_dims if kind == "2D" else RULES)
    if kind in ("tensor parallel", "2D"):
        return strategies.Zero(tensor, tensor, strategies.like_parameters(state, types, tensor))
    stage, base = {"ZeRO 1": (1, None), "ZeRO 2": (2, None), "FSDP": (3, None), "FSDP × TP": (3, tensor)}[kind]
    return strategies.zero(types, state, mesh, stage, base=base, min_size=0)


BYTES = {  # of parameters and of optimizer state on one device
    "data parallel": (33_280, 33_284),
    "ZeRO 1": (33_280, 8_324),
    "ZeRO 2": (33_280, 8_324),
    "FSDP": (8_320, 8_324),
    "tensor parallel": (16_640, 16_644),
    "2D": (4_352, 4_356),
    "FSDP × TP": (4_352, 4_356),  # the biases are sharded over one axis only
}


@pytest.mark.table(default=3)
@pytest.mark.parametrize("kind", BYTES)
def test_training_equals_one_device_and_uses_the_stated_memory(kind, mesh, expected):
    types = sw.eval_shape(init, sw.random.key(0))
    chosen = choose(kind, mesh, types, sw.eval_shape(state_of, types))
    params = strategies.initialize(init, lambda _: chosen.params)(sw.random.key(0))
    state = strategies.initialize(state_of, lambda _: chosen.state)(params)
    counted = strategies.count_bytes(params, chosen.params), strategies.count_bytes(state, chosen.state)
    assert counted == BYTES[kind]
    held = [sum(leaf.addressable_shards[0].data.nbytes for leaf in sw.tree.leaves(tree)) for tree in (params, state)]
    assert tuple(held) == BYTES[kind]
    rows = sw.NamedSharding(mesh, P("data"))
    found, params, state = losses(params, state, *(sw.device_put(each, rows) for each in batch()), chosen)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for tree, shardings in ((params, chosen.params), (state, chosen.state)):
        sw.tree.map(
            lambda leaf, sharding: leaf.sharding == sharding or pytest.fail(str(leaf.sharding)), tree, shardings
        )


def test_fsdp_takes_the_largest_dim_that_is_divisible_and_free(mesh):
    params = {"a": np.zeros((6, 40, 8)), "b": np.zeros((7, 9)), "c": np.zeros(()), "d": np.zeros(4), "f": print}
    chosen = strategies.fsdp(params, mesh, min_size=10)
    assert chosen["a"].spec == P(None, "data") and chosen["b"].spec == P() and chosen["c"].spec == P()
    assert chosen["d"].spec == P() and chosen["f"] is None
    base = {**chosen, "a": sw.NamedSharding(mesh, P(None, "model"))}
    assert strategies.fsdp(params, mesh, base=base, min_size=10)["a"].spec == P(None, "model", "data")
    again = strategies.fsdp(params, mesh, base=chosen, min_size=10)
    assert again["a"].spec == chosen["a"].spec


def test_trees_may_hold_none(mesh):
    params = {"kernel": np.zeros((8, 8), np.float32), "bias": None}  # as a module without a bias
    chosen = strategies.fsdp(params, mesh, min_size=0)
    assert chosen["kernel"].spec == P("data") and chosen["bias"] is None
    assert strategies.count_bytes(params, chosen) == 64
    assert strategies.zero(params, {"mu": params}, mesh, 1, min_size=0).state["mu"]["kernel"].spec == P("data")


def test_logical_axes(mesh):
    axes = {"embed": ("vocab", "embed"), "head": P("embed", "vocab"), "scale": (None,), "none": None}
    chosen = strategies.logical_axes(axes, mesh, {"vocab": ("data", "model"), "embed": None})
    assert [chosen[name].spec for name in axes] == [P(("data", "model")), P(None, ("data", "model")), P(), P()]


def test_the_state_of_an_optimizer_follows_its_parameters(mesh):
    params = {"w": np.zeros((8, 8)), "b": np.zeros(8)}
    shardings = {"w": sw.NamedSharding(mesh, P("data")), "b": sw.NamedSharding(mesh, P("model"))}
    state = ({"mu": params, "nu": {"w": np.zeros(8), "b": np.zeros(8)}}, {"count": np.zeros(())})
    chosen = strategies.like_parameters(state, params, shardings)
    assert chosen[0]["mu"]["w"].spec == P("data") and chosen[0]["mu"]["b"].spec == P("model")
    assert chosen[0]["nu"]["w"].spec == P()  # of another shape than the parameter
    assert chosen[0]["nu"]["b"].spec == P("model") and chosen[1]["count"].spec == P()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p, m: strategies.tensor_parallel(p, m, {"dense/kernel": P()}), "matches no parameter.*'w/kernel'"),
        (
            lambda p, m: strategies.tensor_parallel(p, m, {"kernel": P("rows")}),
            "no axis 'rows'; it has 'data', 'model'",
        ),
        (lambda p, m: strategies.tensor_parallel(p, m, {"kernel": P("data", None, None)}), "has 3 dims"),
        (lambda p, m: strategies.tensor_parallel(p, m, {"kernel": P("data")}), "has size 6, which 4 devices along"),
        (lambda p, m: strategies.tensor_parallel(p, m, {"kernel(": P()}), "'kernel.' is not a regular expression"),
        (lambda p, m: strategies.tensor_parallel(p, m, {"w": (None, "data")}), "write PartitionSpec.None, 'data'."),
        (lambda p, m: strategies.expert_parallel(p, m, "w)", "data"), "'w.' is not a regular expression"),
        (lambda p, m: strategies.fsdp(p, m, "rows"), "no axis 'rows'"),
        (lambda p, m: strategies.fsdp(p, "data", m), "fsdp: mesh must be a Mesh, not 'data'"),
        (lambda p, m: strategies.logical_axes({"a": ("x",)}, {"x": "data"}, m), "logical_axes: mesh must be a Mesh"),
        (lambda p, m: strategies.zero(p, p, m, 4), "stage must be 1, 2 or 3"),
        (lambda p, m: strategies.logical_axes({"a": ("x",)}, m, {"y": None}), "'a' has a dim called 'x'"),
        (lambda p, m: strategies.logical_axes({"a": ("x",)}, m, {"x": "rows"}), "no axis 'rows'"),
        (lambda p, m: strategies.like_parameters(p, {}, {}), "there is no parameter"),
    ],
)
def test_what_does_not_fit_is_an_error(call, message, mesh):
    with pytest.raises(StrategyError, match=message):
        call({"w": {"kernel": np.zeros((6, 8))}}, mesh)


def test_uneven_sizes_are_opt_in(mesh):
    params = {"w": np.zeros((6, 8))}
    chosen = strategies.tensor_parallel(params, mesh, {"w": P("data")}, allow_uneven=True)
    assert chosen["w"].shard_shape((6, 8)) == (2, 8)


EXPERTS = {"router": np.ones((6, 8)), "experts": {"up": np.ones((8, 6, 4)), "down": np.ones((8, 4, 6))}}


def test_experts_are_sharded_along_their_first_dim(mesh):
    chosen = strategies.expert_parallel(EXPERTS, mesh, "^experts/", "data")
    assert [leaf.spec for leaf in sw.tree.leaves(chosen)] == [P("data"), P("data"), P()]
    base = strategies.tensor_parallel(EXPERTS, mesh, {"up": P(None, None, "model"), "down": P(None, "model")})
    chosen = strategies.expert_parallel(EXPERTS, mesh, "experts", "data", base=base)
    assert chosen["experts"]["up"].spec == P("data", None, "model")
    assert chosen["experts"]["down"].spec == P("data", "model") and chosen["router"].spec == P()


def test_expert_weights_that_do_not_fit_are_errors(mesh):
    def check(message, pattern, axis, **options):
        with pytest.raises(StrategyError, match=message):
            strategies.expert_parallel(EXPERTS, mesh, pattern, axis, **options)

    check("the mesh has no axis 'expert'; it has 'data', 'model'", "experts", "expert")
    check("'expert/up' matches no parameter.*'experts/up'", "expert/up", "data")
    check("dim 0 of 'router', of shape .6, 8., has size 6, which 4 devices along 'data' do not divide", "rout", "data")
    base = strategies.tensor_parallel(EXPERTS, mesh, {"up": P("model")})
    check("'experts/up', of shape .8, 6, 4. .* which `base` leaves unsharded", "up", "data", base=base)
    base = strategies.tensor_parallel(EXPERTS, mesh, {"up": P(None, None, "data")})
    check("and no other dim over 'data'", "up", "data", base=base)
