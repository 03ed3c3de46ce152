"""plan_rules: plans of parallelize_module, of transformers and of its families, as specs of parameters."""

import re

import pytest
import torch
import transformers
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel

import shardwise as jax
from shardwise import P, strategies
from shardwise.errors import StrategyError
from shardwise.torch import functional, fused_projections, plan_rules
from tests.torch.models import MODELS, build

TRANSFORMERS = [name for name, (library, _) in MODELS.items() if library == "transformers"]


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(nn.ModuleDict({"up": nn.Linear(8, 32), "down": nn.Linear(32, 8)}) for _ in range(2))
        self.norm = nn.LayerNorm(8)


def specs(module, plan=None):
    """Return the spec of each parameter that a rule matches."""
    rules = plan_rules(module, plan)
    names = [name for name, _ in module.named_parameters()]
    return {name: spec for pattern, spec in rules for name in names if re.search(pattern, name)}


def test_a_plan_of_parallelize_module():
    plan = {
        "embedding": RowwiseParallel(),
        "layers.*.up": ColwiseParallel(),
        "layers.*.down": RowwiseParallel(),
        "layers.0": PrepareModuleInput(input_layouts=(None,), desired_input_layouts=(None,)),
        "norm": SequenceParallel(),
    }
    found = specs(Layers(), plan)
    assert found["embedding.weight"] == P("model", None)
    for layer in range(2):
        assert found[f"layers.{layer}.up.weight"] == P("model", None)
        assert found[f"layers.{layer}.up.bias"] == P("model")
        assert found[f"layers.{layer}.down.weight"] == P(None, "model")
        assert found[f"layers.{layer}.down.bias"] == P()
    assert found["norm.weight"] == P()


def test_columns_of_embeddings_and_convolutions():
    module = nn.ModuleDict({"embedding": nn.Embedding(16, 8), "convolution": nn.Conv2d(4, 8, 3)})
    found = specs(module, {"*": ColwiseParallel()})
    assert found["embedding.weight"] == P(None, "model")
    assert found["convolution.weight"] == P("model", None, None, None)
    assert specs(module, {"*": RowwiseParallel()})["convolution.weight"] == P(None, "model", None, None)


def test_wrong_plans():
    with pytest.raises(StrategyError, match=r"'layers\.\*\.pu' matches no path of Layers"):
        plan_rules(Layers(), {"layers.*.pu": "colwise"})
    with pytest.raises(
        StrategyError, match=r"the style 'columnwise' of 'norm' is unknown\. Styles are ColwiseParallel"
    ):
        plan_rules(Layers(), {"norm": "columnwise"})
    with pytest.raises(StrategyError, match=r"Layers declares no plan, and is of none of the families bert, clip"):
        plan_rules(Layers())


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_every_family_shards_its_attention_and_its_mlps(name):
    module = build(name).module
    _, params, _ = functional(module)
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    shardings = strategies.tensor_parallel(params, mesh, plan_rules(module))
    inside = re.compile(r"\.(layers?|h|block)\.\d+\..*")  # weights of layers; those of routers are small
    for path, leaf in params.items():
        if inside.search(path) and leaf.ndim > 1 and "mlp.gate.weight" not in path:
            assert "model" in shardings[path].spec, path


def test_dims_of_gpt2_whose_weights_are_transposed():
    found = specs(build("GPT-2").module)
    assert found["transformer.h.0.attn.c_attn.weight"] == P(None, "model")  # [in, out]
    assert found["transformer.h.0.attn.c_proj.weight"] == P("model", None)
    assert found["transformer.h.0.attn.c_attn.bias"] == P("model") and found["transformer.h.0.attn.c_proj.bias"] == P()
    assert found["transformer.wte.weight"] == P("model", None)


def test_experts_of_mixtral():
    found = specs(build("Mixtral").module)
    assert found["model.layers.0.mlp.experts.down_proj"] == P(None, None, "model")
    assert found["model.layers.0.mlp.experts.gate_up_proj"] == P(None, "model", None)
    assert found["lm_head.weight"] == P("model", None)
    experts = {"**.experts.*_proj": "grouped_gemm"}
    assert specs(build("Mixtral").module, experts)["model.layers.1.mlp.experts.down_proj"] == P("model", None, None)


@pytest.mark.parametrize("name", ["Mixtral", "Qwen MoE"])
def test_experts_are_sharded_along_an_axis_of_their_own(name):
    sizes = dict(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2)
    configs = {
        "Mixtral": lambda: transformers.MixtralConfig(**sizes, intermediate_size=64, num_local_experts=4),
        "Qwen MoE": lambda: transformers.Qwen3MoeConfig(**sizes, moe_intermediate_size=64, num_experts=4, head_dim=8),
    }
    module = transformers.AutoModelForCausalLM.from_config(configs[name]())
    function, params, _ = functional(module, split=fused_projections(module))
    mesh = jax.make_mesh((2, 2, 2), ("data", "expert", "model"))
    rules = plan_rules(module, expert_axis="expert", fused=function.fused)
    found = strategies.tensor_parallel(params, mesh, rules)
    assert found["model.layers.0.mlp.experts.down_proj"].spec == P("expert", None, "model")
    assert found["model.layers.0.mlp.experts.gate_up_proj"].spec == P("expert", None, "model", None)  # [e, 2, d, in]
    assert found["model.layers.0.self_attn.q_proj.weight"].spec == P("model", None)
    assert found["model.layers.0.mlp.gate.weight"].spec == P()
    one = dict(plan_rules(module, expert_axis="model"))
    assert one[r"^model\.layers\.0\.mlp\.experts\.gate_up_proj$"] == P("model", None, None)
    with pytest.raises(StrategyError, match=r"Layers has no weights of experts for the axis 'expert'"):
        plan_rules(Layers(), {"norm": "replicate"}, expert_axis="expert")


def test_a_tied_name_applies_to_the_first_name():
    module = nn.ModuleDict({"embedding": nn.Embedding(16, 8), "head": nn.Linear(8, 16, bias=False)})
    module["head"].weight = module["embedding"].weight
    assert specs(module, {"head": "colwise"}) == {"embedding.weight": P("model", None)}
    assert torch.equal(module["head"].weight, module["embedding"].weight)


def test_frozen_parameters_are_sharded_too():
    module = nn.ModuleDict({"up": nn.Linear(6, 9), "down": nn.Linear(9, 6)})
    module["up"].requires_grad_(False)
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    mesh = jax.make_mesh((3,), ("model",))
    _, params, buffers = functional(
        module, shardings=lambda types: strategies.tensor_parallel(types, mesh, plan_rules(module, plan))
    )
    assert buffers["up.weight"].sharding.spec == P("model", None) and buffers["up.bias"].sharding.spec == P("model")
    assert params["down.weight"].sharding.spec == P(None, "model")
    trained = strategies.tensor_parallel(params, mesh, plan_rules(module, plan, frozen=False))
    assert trained["down.weight"].spec == P(None, "model")
    with pytest.raises(StrategyError, match="matches no parameter"):
        strategies.tensor_parallel(params, mesh, plan_rules(module, plan))
