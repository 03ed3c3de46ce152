"""functional: modules as pure functions, training, state that changes, and errors with the module's path."""

import copy
import gc
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import NamedSharding, P, strategies
from shardwise.base.torch_versions import installed_version
from shardwise.errors import TorchModuleError
from shardwise.torch import functional, register_op

pytestmark = pytest.mark.filterwarnings("default")


class Network(nn.Module):
    """A convolution with BatchNorm, dropout and a head."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.dropout(F.relu(self.norm(self.convolution(x))).mean((2, 3))))


class Tied(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        return self.head(torch.tanh(self.embedding(ids)))


def images(count=4):
    return np.random.default_rng(0).standard_normal((count, 3, 8, 8), np.float32)


def close(array, tensor, tolerance=1e-6):
    np.testing.assert_allclose(np.asarray(array), tensor.detach().numpy(), atol=tolerance)


def test_state_has_the_paths_of_the_module():
    module = Network()
    _, params, buffers = functional(module)
    assert list(params) == [name for name, _ in module.named_parameters()]
    assert list(buffers) == ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]
    for name, array in params.items():
        np.testing.assert_array_equal(array, module.state_dict()[name])
    assert buffers["norm.num_batches_tracked"].dtype == np.int32  # int64 in PyTorch; 64 bits are disabled
    params["head.bias"] = params["head.bias"] + 1  # arrays are copies


def test_batch_norm_returns_its_new_statistics():
    module = Network()
    module.dropout.eval()
    function, params, buffers = functional(module)
    outputs, new = jax.jit(function)(params, buffers, images())
    close(outputs, module(torch.tensor(images())))
    for name, value in new.items():
        close(value, module.state_dict()[name])
    assert int(new["norm.num_batches_tracked"]) == 1 and int(buffers["norm.num_batches_tracked"]) == 0


def test_the_mode_is_that_of_the_module_when_the_function_was_created():
    module = Network()
    function, params, buffers = functional(module.eval())
    module.train()
    outputs, new = function(params, buffers, images())
    assert module.training and module.norm.training
    close(outputs, copy.deepcopy(module).eval()(torch.tensor(images())))
    np.testing.assert_array_equal(new["norm.running_mean"], buffers["norm.running_mean"])


def test_dropout_needs_a_key_and_depends_on_it():
    function, params, buffers = functional(nn.Sequential(nn.Dropout(0.5)))
    step = jax.jit(function)
    ones = np.ones((64, 64), np.float32)
    first, second, again = (step(params, buffers, ones, key=jax.random.key(seed))[0] for seed in (0, 1, 0))
    assert set(np.unique(first)) == {0.0, 2.0} and 0.4 < float((first == 0).mean()) < 0.6
    assert (first != second).any() and (first == again).all()
    with pytest.raises(TorchModuleError, match="needs a PRNG key: pass `key=`"):
        step(params, buffers, ones)


def test_a_tied_parameter_is_one_leaf_and_stays_tied():
    module = Tied()
    function, params, buffers = functional(module)
    assert list(params) == ["embedding.weight"]
    ids = np.arange(6).reshape(2, 3)
    gradient = jax.grad(lambda params: function(params, buffers, ids)[0].sum())(params)["embedding.weight"]
    module(torch.tensor(ids)).sum().backward()
    close(gradient, module.embedding.weight.grad, 1e-5)
    module.load_state_dict(
        function.state_dict({"embedding.weight": 2 * params["embedding.weight"]}, buffers), assign=True
    )
    assert module.head.weight is module.embedding.weight
    close(2 * params["embedding.weight"], module.head.weight)
    with pytest.raises(TorchModuleError, match=r"'head.weight' is not .* It is tied to 'embedding.weight'"):
        function({**params, "head.weight": params["embedding.weight"]}, buffers, ids)


def test_training_on_a_mesh_equals_training_in_pytorch_and_loads_into_the_module():
    torch.manual_seed(0)
    module = Network()
    module.dropout.eval()
    twin = copy.deepcopy(module)
    function, params, buffers = functional(module)
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    shardings = strategies.fsdp(params, mesh, "data", min_size=8)
    params = jax.device_put(params, shardings)
    targets = np.arange(8) % 5

    def loss(params, buffers, x, y):
        logits, buffers = function(params, buffers, x)
        return jnp.mean(jax.nn.logsumexp(logits, 1) - logits[jnp.arange(8), y]), buffers

    @jax.jit
    def step(params, buffers, x, y):
        (value, buffers), gradients = jax.value_and_grad(loss, has_aux=True)(params, buffers, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), buffers, value

    batch = jax.device_put((images(8), targets), NamedSharding(mesh, P("data")))
    optimizer = torch.optim.SGD(twin.parameters(), 0.1)
    for _ in range(3):
        params, buffers, value = step(params, buffers, *batch)
        expected = F.cross_entropy(twin(torch.tensor(images(8))), torch.tensor(targets))
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
        close(value, expected)
    assert params["convolution.weight"].sharding == shardings["convolution.weight"]
    missing, unexpected = module.load_state_dict(function.state_dict(params, buffers), assign=True)
    assert not missing and not unexpected
    for name, tensor in twin.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], tensor, atol=1e-6, rtol=1e-5)
    assert module.head.weight.requires_grad


def test_an_array_on_one_device_shares_its_memory_with_the_tensor():
    function, params, buffers = functional(nn.Linear(64, 64))
    tensor = function.state_dict(params, buffers)["weight"]
    assert tensor.data_ptr() == params["weight"].unsafe_buffer_pointer()


def test_frozen_parameters_are_buffers():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[0].requires_grad_(False)
    function, params, buffers = functional(module)
    assert (list(params), list(buffers)) == (["1.weight", "1.bias"], ["0.weight", "0.bias"])
    module.load_state_dict(function.state_dict(params, buffers), assign=True)
    assert [p.requires_grad for p in module.parameters()] == [False, False, True, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_survive_the_round_trip(dtype):
    module = nn.Linear(3, 3).to(dtype)
    function, params, buffers = functional(module)
    assert str(params["weight"].dtype) == str(dtype).removeprefix("torch.")
    mesh = jax.make_mesh((2,), ("x",))
    for place in (params, jax.device_put(params, NamedSharding(mesh, P()))):
        state = function.state_dict(place, buffers)
        assert state["weight"].dtype == dtype and (state["weight"] == module.weight).all()


def test_a_module_on_the_meta_device_is_planned_without_its_weights():
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))
    function, params, buffers = functional(module)
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in params.values())
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    shardings = strategies.fsdp(params, mesh, "data")
    types = {n: jax.ShapeDtypeStruct(t.shape, t.dtype, sharding=shardings[n]) for n, t in params.items()}
    batch = jax.ShapeDtypeStruct((64, 1024), np.float32, sharding=NamedSharding(mesh, P("data")))
    plan = jax.explain(jax.grad(lambda p, x: function(p, buffers, x)[0].sum()))(types, batch)
    assert plan.wire_bytes > 0


def test_explain_cites_the_lines_of_the_model_and_the_paths_of_parameters():
    function, params, buffers = functional(Tied())
    mesh = jax.make_mesh((8,), ("model",))
    params = jax.device_put(params, NamedSharding(mesh, P(None, "model")))
    text = str(jax.explain(lambda params, ids: function(params, buffers, ids)[0])(params, np.zeros((2, 3), int)))
    assert "test_functional.py:" in text and "params['embedding.weight']" in text
    assert "linear.py" not in text and "jaten.py" not in text and "functional.py:2" not in text


class Faulty(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.ModuleList([FaultyLayer()])

    def forward(self, x, fault):
        return self.inner[0](x, fault)


class FaultyLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = torch.full((4,), 2.0)  # neither a parameter nor a buffer
        self.constants = [torch.ones(4)]

    def forward(self, x, fault):
        y = self.linear(x) * self.scale
        if fault == "branch" and y.sum() > 0:
            return y
        if fault == "op":
            return torch.special.airy_ai(y)
        if fault == "list":
            return y + self.constants[0]
        if fault == "mask":
            return y[y > 0]
        if fault == "parameter":
            self.linear.weight.mul_(2)
        return y


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("branch", r"Python needs the value of a tensor"),
        ("op", r"torchax does not have the op aten::special_airy_ai\. Register a function"),
        ("list", r"a tensor that is not part of the module's state is mixed with traced ones"),
        ("mask", r"Python needs the value of a tensor"),
    ],
)
def test_errors_name_the_module_and_the_line(fault, message):
    function, params, buffers = functional(Faulty())
    with pytest.raises(TorchModuleError, match=message) as error:
        jax.jit(lambda params, x: function(params, buffers, x, fault)[0])(params, np.ones((2, 4), np.float32))
    assert "in `inner.0` (FaultyLayer, test_functional.py:" in str(error.value)


def test_a_tensor_that_is_an_attribute_is_part_of_the_state():
    function, params, buffers = functional(FaultyLayer())
    assert list(buffers) == ["scale"]
    doubled, _ = function(params, {"scale": 2 * buffers["scale"]}, np.ones((2, 4), np.float32), "")
    np.testing.assert_allclose(doubled, 2 * function(params, buffers, np.ones((2, 4), np.float32), "")[0], rtol=1e-6)
    assert list(function.state_dict(params, buffers)) == ["linear.weight", "linear.bias"]


def test_a_parameter_that_changes_is_an_error():
    function, params, buffers = functional(Faulty())
    with pytest.raises(TorchModuleError, match=r"assigns to its parameter 'inner\.0\.linear\.weight'"):
        function(params, buffers, np.ones((2, 4), np.float32), "parameter")


def test_errors_of_the_module_itself_keep_their_class():
    function, params, buffers = functional(nn.Sequential(nn.Linear(4, 4)))
    with pytest.raises((TypeError, ValueError)) as error:
        function(params, buffers, np.ones((2, 3), np.float32))
    assert not isinstance(error.value, TorchModuleError)
    assert any("In `0` (Linear" in note for note in error.value.__notes__)


def test_wrong_state_is_an_error_with_the_name():
    function, params, buffers = functional(nn.Linear(4, 4))
    x = np.ones((2, 4), np.float32)
    with pytest.raises(TorchModuleError, match="'bias' is missing in the module's params"):
        function({"weight": params["weight"]}, buffers, x)
    with pytest.raises(
        TorchModuleError, match=r"'wieght' is not a name of the module's params\. Did you mean 'weight'"
    ):
        function({**params, "wieght": params["weight"]}, buffers, x)
    with pytest.raises(TorchModuleError, match=r"'bias' has shape \(3,\) in params, and \(4,\) in the module"):
        function({**params, "bias": jnp.ones(3)}, buffers, x)


def test_other_arguments_and_dtypes_are_errors():
    with pytest.raises(TypeError, match=r"create one: functional\(Linear\(...\)\)"):
        functional(nn.Linear)
    with pytest.raises(TorchModuleError, match=r"'weight' has dtype torch.float64, which needs"):
        functional(nn.Linear(2, 2).double())
    with pytest.raises(TorchModuleError, match=r"'weight' has no shape yet"):
        functional(nn.LazyLinear(2))


def test_no_gradient_flows_through_no_grad():
    class Teacher(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            with torch.no_grad():
                target = x * self.weight
            return (self.weight * target).sum()

    module = Teacher()
    function, params, buffers = functional(module)
    x = np.arange(3, dtype=np.float32)
    gradient = jax.grad(lambda params: function(params, buffers, x)[0])(params)["weight"]
    module(torch.tensor(x)).backward()
    close(gradient, module.weight.grad)


class Round(torch.autograd.Function):
    """Rounding with the gradient of the identity."""

    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (Round.apply, r"the torch\.autograd\.Function Round has a backward pass of its own"),
        (lambda x: checkpoint(torch.sin, x, use_reentrant=True), r"wrap the function: `jax\.checkpoint"),
    ],
    ids=["function", "reentrant checkpoint"],
)
def test_backward_passes_that_would_be_ignored_are_errors(function, message):
    class Apply(nn.Module):
        def forward(self, x):
            return function(x)

    called, params, buffers = functional(Apply())
    with pytest.raises(TorchModuleError, match=message):
        jax.grad(lambda x: called(params, buffers, x)[0].sum())(np.ones(3, np.float32))


def test_a_checkpoint_that_is_not_reentrant_is_an_error_or_recomputes_nothing():
    """PyTorch 2.11 raises an error for devices that it does not know; 2.12 does not."""

    class Apply(nn.Module):
        def forward(self, x):
            return checkpoint(torch.sin, x, use_reentrant=False)

    function, params, buffers = functional(Apply())
    try:
        gradient = jax.grad(lambda x: function(params, buffers, x)[0].sum())(np.ones(3, np.float32))
    except TorchModuleError as error:
        assert "wrap the function: `jax.checkpoint(function)`. It is called in" in str(error)
    else:
        np.testing.assert_allclose(gradient, np.cos(np.ones(3)), rtol=1e-6)


def _assign_to_view(y):
    y.view(-1)[:3] = 5


# Changes in place of a view of `y`. Those of slices change `y`, and the others are errors where `y` is used again.
VIEW_CHANGES = {
    "slice": lambda y: y[:, 1:3].mul_(2),
    "row": lambda y: y[0].zero_(),
    "slice of a slice": lambda y: y[1:][:, 1:].fill_(7),
    "masked": lambda y: y[:, :2].masked_fill_(y[:, :2] > 2, -1.0),
    "copy": lambda y: y[0].copy_(y[1]),
    "view": lambda y: y.view(-1).add_(1),
    "assigned view": _assign_to_view,
    "slice of a view": lambda y: y.view(-1)[2:5].add_(1),
    "row of a transpose": lambda y: y.t()[0].zero_(),
    "transpose": lambda y: y.T.mul_(3),
    "narrow": lambda y: y.narrow(1, 0, 2).mul_(2),
    "split": lambda y: y.split(2, 1)[0].mul_(2),
    "unbind": lambda y: torch.unbind(y)[1].mul_(2),
    "diagonal": lambda y: y.diagonal().zero_(),
}


@pytest.mark.parametrize("name", VIEW_CHANGES)
def test_changes_of_views_are_those_of_pytorch_or_errors(name):
    class Change(nn.Module):
        def forward(self, x):
            y = x * 1
            VIEW_CHANGES[name](y)
            return y + 1

    function, params, buffers = functional(Change())
    x = np.arange(1, 9, dtype=np.float32).reshape(2, 4)
    if list(VIEW_CHANGES).index(name) < 5:
        close(jax.jit(function)(params, buffers, x)[0], Change()(torch.tensor(x)))
    else:
        message = r"changed through another view, .* in `the module itself` \(Change, test_functional\.py:"
        with pytest.raises(TorchModuleError, match=message):
            function(params, buffers, x)


def test_a_changed_view_may_be_used_alone():
    class Change(nn.Module):
        def forward(self, x):
            y = x.view(-1, 2).mul_(2)
            return y.masked_fill_(y > 4, 0.0)

    function, params, buffers = functional(Change())
    x = np.arange(1, 9, dtype=np.float32).reshape(2, 4)
    close(function(params, buffers, x)[0], Change()(torch.tensor(x)))


def _hooked(kind):
    module = nn.Sequential(nn.Linear(4, 4))
    double = lambda *arguments: (2 * arguments[-1][0],)  # noqa: E731
    {
        "forward": lambda: module[0].register_forward_hook(lambda module, inputs, outputs: 2 * outputs),
        "forward_pre": lambda: module[0].register_forward_pre_hook(double),
        "backward": lambda: module[0].register_full_backward_hook(double),
        "backward_pre": lambda: module[0].register_full_backward_pre_hook(double),
        "tensor": lambda: module[0].weight.register_hook(lambda gradient: 2 * gradient),
        "accumulate": lambda: module[0].weight.register_post_accumulate_grad_hook(lambda parameter: None),
    }[kind]()
    return module


@pytest.mark.parametrize("kind", ["forward", "forward_pre"])
def test_forward_hooks_are_called(kind):
    module = _hooked(kind)
    function, params, buffers = functional(module)
    x = np.ones((2, 4), np.float32)
    close(jax.jit(function)(params, buffers, x)[0], module(torch.tensor(x)))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("backward", r"functional: '0' has a backward hook, which would not be called"),
        ("backward_pre", r"functional: '0' has a backward hook"),
        ("tensor", r"functional: '0\.weight' has a hook on its gradient"),
        ("accumulate", r"functional: '0\.weight' has a hook on its gradient"),
    ],
)
def test_hooks_on_gradients_are_errors(kind, message):
    with pytest.raises(TorchModuleError, match=message):
        functional(_hooked(kind))


def test_autograd_inside_a_module_is_an_error():
    class Hook(nn.Module):
        def forward(self, x):
            x.register_hook(print)
            return x

    function, params, buffers = functional(Hook())
    with pytest.raises(TorchModuleError, match="a module calls `register_hook` of a tensor"):
        function(params, buffers, np.ones(2, np.float32))


def test_wrappers_for_several_devices_are_errors():
    wrapper = nn.DataParallel.__new__(nn.DataParallel)  # its own constructor needs devices
    nn.Module.__init__(wrapper)
    wrapper.module = nn.Linear(2, 2)
    with pytest.raises(TorchModuleError, match=r"the module itself is DataParallel.*`wrapper\.module`"):
        functional(wrapper)


@pytest.mark.parametrize("compiled", ["module", "submodule", "in place", "forward"])
def test_compiled_modules_compute_what_they_do_otherwise(compiled):
    """Under torchax's modes, torch.compile calls the module itself; Shardwise compiles it."""

    class Compiled(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        @torch.compile
        def forward(self, x):
            return self.linear(x)

    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    module = {
        "module": lambda: torch.compile(module),
        "submodule": lambda: nn.Sequential(torch.compile(module)),
        "in place": lambda: module.compile() or module,
        "forward": Compiled,
    }[compiled]()
    function, params, buffers = functional(module)
    assert list(params) == [name for name, _ in module.named_parameters()]  # with `_orig_mod`, as in its state_dict
    x = np.ones((2, 4), np.float32)
    weight = list(params.values())
    expected = x @ np.asarray(weight[0]).T + np.asarray(weight[1])
    expected = expected if compiled == "forward" else np.maximum(expected, 0)
    np.testing.assert_allclose(jax.jit(function)(params, buffers, x)[0], expected, rtol=1e-5, atol=1e-6)


def test_a_registered_op_is_used():
    register_op(torch.ops.aten.special_airy_ai.default, lambda x: 3 * x)

    class Airy(nn.Module):
        def forward(self, x):
            return torch.special.airy_ai(x)

    function, params, buffers = functional(Airy())
    assert float(jax.jit(function)(params, buffers, np.float32(2))[0]) == 6
    with pytest.raises(TypeError, match="register_op: function must be callable, not 3"):
        register_op(torch.ops.aten.special_airy_ai.default, 3)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 2])
def test_embedding_bags_with_offsets(mode, padding):
    torch.manual_seed(0)
    module = nn.EmbeddingBag(10, 4, mode=mode, padding_idx=padding)
    function, params, buffers = functional(module)
    indices, offsets = np.array([1, 2, 4, 5, 4, 2, 9, 2]), np.array([0, 4, 4, 7])  # the second bag is empty
    outputs, _ = jax.jit(function)(params, buffers, indices, offsets)
    close(outputs, module(torch.tensor(indices), torch.tensor(offsets)))


def test_results_of_registered_classes_are_pytrees():
    @jax.jit
    def call(x):
        return function(params, buffers, x)[0]

    class Result(dict):
        pass

    torch.utils._pytree.register_pytree_node(
        Result, lambda r: (list(r.values()), list(r)), lambda values, names: Result(zip(names, values, strict=True))
    )

    class Model(nn.Module):
        def forward(self, x):
            return Result(logits=x + 1, hidden=[x, None], size=3)

    function, params, buffers = functional(Model())
    result = call(np.ones(2, np.float32))
    assert type(result) is Result and list(result) == ["logits", "hidden", "size"] and result["hidden"][1] is None


def test_a_result_that_is_no_pytree_is_an_error():
    class Model(nn.Module):
        def forward(self, x):
            return {"cache": object(), "x": x}

    function, params, buffers = functional(Model())
    with pytest.raises(TorchModuleError, match="returns an object of class object, which is no pytree"):
        function(params, buffers, np.ones(2, np.float32))


@pytest.mark.skipif(installed_version("jax") is None, reason="jax is not installed")
def test_the_real_jax_must_not_be_imported():
    run = subprocess.run(
        [sys.executable, "-c", "import jax\nimport shardwise.torch"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "ImportError: shardwise.torch runs torchax on Shardwise. as_jax: the real jax" in run.stderr


def test_tensors_are_copied_to_their_shards_one_by_one_and_the_module_need_not_keep_them():
    module = nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Linear(9, 4))
    module[2].requires_grad_(False)
    weights = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    mesh = jax.make_mesh((3,), ("data",))
    function, params, buffers = functional(module, shardings=lambda types: strategies.fsdp(types, mesh, min_size=9))
    assert params["0.weight"].sharding.spec == P("data")
    assert buffers["2.weight"].sharding.spec == P(None, "data")  # a frozen parameter
    assert [shard.data.shape for shard in params["0.weight"].addressable_shards] == [(3, 6)] * 3
    alive = weakref.ref(module[0].weight)
    module.to_empty(device="meta")
    gc.collect()
    assert alive() is None
    for name, array in {**params, **buffers}.items():
        np.testing.assert_array_equal(array, weights[name])
    results = jax.jit(function)(params, buffers, np.ones((5, 6), np.float32))[0]
    assert results.shape == (5, 4)
    module.load_state_dict(function.state_dict(params, buffers), assign=True)
    assert all((tensor == weights[name]).all() for name, tensor in module.state_dict().items())


def test_meta_parameters_have_their_shardings_and_parts_are_placed_apart():
    mesh = jax.make_mesh((2,), ("model",))
    shardings = {"0.weight.a": P(None, "model"), "0.weight.b": P("model", None), "0.bias.a": P(), "0.bias.b": P()}
    shardings = {name: NamedSharding(mesh, spec) for name, spec in shardings.items()}
    for device in ("cpu", "meta"):
        module = nn.Sequential(nn.Linear(4, 6, device=device))
        _, params, _ = functional(module, split={"0": {"a": 4, "b": 2}}, shardings=shardings)
        assert {name: leaf.sharding for name, leaf in params.items()} == shardings
    module = nn.Sequential(nn.Linear(4, 6))
    _, params, _ = functional(module, split={"0": {"a": 4, "b": 2}}, shardings=shardings)
    np.testing.assert_array_equal(params["0.weight.b"], module[0].weight.detach()[4:])


@pytest.mark.parametrize(
    ("shardings", "message"),
    [
        (
            {"weigth": P()},
            r"`shardings` has 'weigth', which is not a name of the module's state\. Did you mean 'weight'",
        ),
        ({"weight": P()}, r"`shardings` has none for the parameter 'bias'\. A replicated one is"),
        ({"weight": P(None, None, "data"), "bias": P()}, r"'weight' cannot have its sharding(.|\n)*rank 2"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_wrong_shardings_are_errors(shardings, message, device):
    mesh = jax.make_mesh((2,), ("data",))
    with pytest.raises(TorchModuleError, match=message):
        functional(
            nn.Linear(4, 4, device=device),
            shardings={name: NamedSharding(mesh, spec) for name, spec in shardings.items()},
        )


def test_arrays_on_one_device_are_loaded_without_a_copy():
    module = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64))
    function, params, buffers = functional(module)
    params = jax.tree.map(lambda p: p + 1, params)
    module.load_state_dict(function.state_dict(params, buffers), assign=True)
    for name in ("0.weight", "0.bias", "1.weight"):
        assert module.get_parameter(name).data_ptr() == params[name].unsafe_buffer_pointer()
    assert module[1].running_var.data_ptr() == buffers["1.running_var"].unsafe_buffer_pointer()


def test_wrong_dtypes_and_values_are_errors():
    function, params, buffers = functional(nn.BatchNorm1d(3))
    x = np.ones((2, 3), np.float32)
    with pytest.raises(
        TorchModuleError, match=r"'bias' has dtype int32 in params, and float32 in the module: only the"
    ):
        function({**params, "bias": jnp.zeros(3, int)}, buffers, x)
    with pytest.raises(TorchModuleError, match=r"'num_batches_tracked' has dtype float32 in buffers, and int32"):
        function(params, {**buffers, "num_batches_tracked": jnp.zeros(())}, x)
    with pytest.raises(TorchModuleError, match=r"'bias' is \[0, 0, 0\] in params, which is not an array"):
        function({**params, "bias": [0, 0, 0]}, buffers, x)


class Constants(nn.Module):
    """Creates tensors without a device, as many modules do."""

    def forward(self, x):
        mask = torch.triu(torch.full((4, 4), -1.0), 1) + torch.tensor([0.0, 1.0, 2.0, 3.0])
        return x @ (mask + torch.zeros(4, 4) + torch.eye(4) + torch.arange(4) + torch.linspace(0, 1, 4))


def test_tensors_that_a_module_creates_without_a_device():
    function, params, buffers = functional(Constants())
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    close(jax.jit(function)(params, buffers, x)[0], Constants()(torch.tensor(x)))
