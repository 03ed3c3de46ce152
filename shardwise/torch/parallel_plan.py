"""Tensor-parallel plans of PyTorch and of transformers, as rules for `strategies.tensor_parallel`.

A plan maps paths of modules to styles: what PyTorch's `parallelize_module` accepts, or the names that the models of
transformers declare. Models of transformers that declare none are in FAMILIES.

    "layers.*.mlp.up_proj": ColwiseParallel()     the weight [out, in] is sharded along out
    "layers.*.mlp.down_proj": "rowwise"           along in
"""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Literal

import torch
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
)
from torch.distributed.tensor.parallel.style import ParallelStyle

from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.errors import StrategyError
from shardwise.torch.fused_projections import NOT_FUSED, FusedProjections
from shardwise.torch.module_paths import columns_dim, match_paths, own_parameters, rows_dim
from shardwise.torch.module_state import module_tensors

Plan = Mapping[str, "ParallelStyle | str"]
Sharded = Literal["columns", "rows", "experts", "nothing", "unspecified"]

_CLASSES: dict[type, Sharded] = {
    ColwiseParallel: "columns",
    RowwiseParallel: "rows",
    SequenceParallel: "nothing",  # shards activations; the plan of the compiler decides about these
    PrepareModuleInput: "unspecified",
    PrepareModuleOutput: "unspecified",
}
# The styles of transformers. Those of modules that own no weights, such as a router, do not specify weights.
_NAMES: dict[str, Sharded] = {
    "colwise": "columns",
    "colwise_gather_output": "columns",
    "packed_colwise": "columns",
    "embedding_colwise": "columns",
    "rowwise": "rows",
    "rowwise_split_input": "rows",
    "packed_rowwise": "rows",
    "embedding_rowwise": "rows",
    "grouped_gemm": "experts",
    "replicated_with_grad_allreduce": "nothing",
    "mla_kv_a_proj": "nothing",
    "replicate": "nothing",
    "sequence_parallel": "nothing",
    "all_reduce": "unspecified",
    "ep_dispatch_experts": "unspecified",
    "moe_identity_expert": "unspecified",
    "moe_tp_experts": "unspecified",
}

_ATTENTION_AND_MLP = {
    "**.q_proj": "colwise",
    "**.k_proj": "colwise",
    "**.v_proj": "colwise",
    "**.o_proj": "rowwise",
    "**.out_proj": "rowwise",
    "**.fc1": "colwise",
    "**.fc2": "rowwise",
}
# Families of transformers whose models declare no plan, by `config.model_type`; `**` stands for any path.
FAMILIES: dict[str, dict[str, str]] = {
    "bert": {
        "**.query": "colwise",
        "**.key": "colwise",
        "**.value": "colwise",
        "**.output.dense": "rowwise",
        "**.intermediate.dense": "colwise",
        "**.word_embeddings": "embedding_rowwise",
    },
    "clip": {**_ATTENTION_AND_MLP, "**.token_embedding": "embedding_rowwise"},
    "gpt2": {
        "**.attn.c_attn": "colwise",
        "**.attn.c_proj": "rowwise",
        "**.mlp.c_fc": "colwise",
        "**.mlp.c_proj": "rowwise",
        "**.wte": "embedding_rowwise",
    },
    "t5": {
        "**.q": "colwise",
        "**.k": "colwise",
        "**.v": "colwise",
        "**.o": "rowwise",
        "**.wi": "colwise",
        "**.wi_0": "colwise",
        "**.wi_1": "colwise",
        "**.wo": "rowwise",
        "**.relative_attention_bias": "colwise",
        "shared": "embedding_rowwise",
    },
    "vit": _ATTENTION_AND_MLP,
    "whisper": {**_ATTENTION_AND_MLP, "**.embed_tokens": "embedding_rowwise"},
}


def plan_rules(
    module: torch.nn.Module,
    plan: Plan | None = None,
    *,
    axis: str = "model",
    expert_axis: str | None = None,
    fused: FusedProjections = NOT_FUSED,
    frozen: bool = True,
) -> list[tuple[str, PartitionSpec]]:
    """Return the rules of a tensor-parallel plan, for `strategies.tensor_parallel(params, mesh, rules)`.

    Args:
        module: the module.
        plan: paths of modules or parameters and their styles, as for `parallelize_module`. `*` stands for one name and
            `**` for any path. A style is an object of PyTorch, such as `ColwiseParallel()`, or a name, such as
            "colwise". Parameters of modules that it does not name are replicated. By default, the plan that a model of
            transformers declares, or that of its family.
        axis: the mesh axis.
        expert_axis: the mesh axis along which the experts of a mixture are sharded, for families such as Mixtral and
            Qwen-MoE. Other dims of their weights keep `axis`, unless it is the same.
        fused: the fused projections whose parts are stored apart: `function.fused` of `functional(module, split=...)`.
        frozen: whether there are rules for parameters that do not require gradients, which `functional` has among the
            buffers. Pass False for rules that are applied to the trained parameters alone.

    Returns:
        Pairs of a regular expression for the name of one parameter, and its spec.

    Raises:
        StrategyError: if a path matches nothing, if a style is unknown, if there is no plan for the module, or if it
            has no experts for `expert_axis`.

    Example:
        >>> plan_rules(torch.nn.Sequential(torch.nn.Linear(4, 8)), {"0": ColwiseParallel()})
        [('^0\\\\.weight$', P('model', None)), ('^0\\\\.bias$', P('model'))]
    """
    names, tensors = module_tensors(module)
    paths = [*tensors, *names.aliases]
    specs: dict[str, PartitionSpec] = {}
    for pattern, style in (_declared_plan(module) if plan is None else plan).items():
        sharded = _sharded(pattern, style)
        matches = match_paths(module, paths, pattern)
        if plan is not None and not matches:
            near = get_close_matches(pattern, [*(path for path, _ in module.named_modules()), *paths], 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise StrategyError(f"plan_rules: {pattern!r} matches no path of {type(module).__name__}.{hint}")
        for path in [] if sharded == "unspecified" else matches:
            for name in own_parameters(module, path):
                first = names.aliases.get(name, name)
                specs.setdefault(first, _spec(sharded, module, name, tensors[first].ndim, axis))
    if expert_axis is not None:
        specs |= _expert_specs(module, tensors, specs, expert_axis)
    rules = []
    for name, spec in specs.items():
        if name in names.params or (frozen and isinstance(tensors[name], torch.nn.Parameter)):
            parameter = fused.parameters.get(name)
            leaf_spec = spec if parameter is None else parameter.spec(spec)
            rules += [(f"^{re.escape(leaf)}$", leaf_spec) for leaf in fused.leaf_names(name)]
    return rules


def _expert_specs(
    module: torch.nn.Module, tensors: Mapping[str, torch.Tensor], specs: Mapping[str, PartitionSpec], axis: str
) -> dict[str, PartitionSpec]:
    """Return the specs of the weights of experts, [experts, ...], with the experts sharded along an axis."""
    names = [
        name
        for name, tensor in tensors.items()
        if tensor.ndim == 3 and isinstance(tensor, torch.nn.Parameter) and name.split(".")[-2:-1] == ["experts"]
    ]
    if not names:
        raise StrategyError(
            f"plan_rules: {type(module).__name__} has no weights of experts for the axis {axis!r}: parameters "
            "[experts, out, in] of a module named `experts`, as Mixtral's and Qwen-MoE's"
        )
    found = {}
    for name in names:
        others = [None if each == axis else each for each in specs.get(name, PartitionSpec())][1:]
        found[name] = PartitionSpec(axis, *others, *[None] * (2 - len(others)))
    return found


def _declared_plan(module: torch.nn.Module) -> Plan:
    plan: Plan | None = getattr(module, "_tp_plan", None)
    family = getattr(getattr(module, "config", None), "model_type", None)
    if plan or family in FAMILIES:
        return plan or FAMILIES[str(family)]
    raise StrategyError(
        f"plan_rules: {type(module).__name__} declares no plan, and is of none of the families {', '.join(FAMILIES)}. "
        "Pass one, such as {'layers.*.up': 'colwise', 'layers.*.down': 'rowwise'}"
    )


def _sharded(pattern: str, style: "ParallelStyle | str") -> Sharded:
    known = (
        _NAMES.get(style)
        if isinstance(style, str)
        else next((sharded for cls, sharded in _CLASSES.items() if isinstance(style, cls)), None)
    )
    if known is None:
        known_names = ", ".join([*(cls.__name__ for cls in _CLASSES), *map(repr, _NAMES)])
        raise StrategyError(f"plan_rules: the style {style!r} of {pattern!r} is unknown. Styles are {known_names}")
    return known


def _spec(sharded: Sharded, module: torch.nn.Module, name: str, rank: int, axis: str) -> PartitionSpec:
    if sharded == "nothing" or (rank == 1 and sharded != "columns"):
        return PartitionSpec()
    if sharded == "columns":
        dim = columns_dim(module, name, rank)
    else:
        dim = 0 if sharded == "experts" else rows_dim(module, name, rank)
    return PartitionSpec(*(axis if each == dim else None for each in range(rank)))
