"""PyTorch modules on Shardwise, without a line changed.

from shardwise.torch import functional

function, params, buffers = functional(module)
outputs, buffers = function(params, buffers, *inputs)
"""

from shardwise.torch import _installed  # noqa: F401 - before torchax
from shardwise.torch.distributed_checkpoint import load_distributed_checkpoint, save_distributed_checkpoint
from shardwise.torch.functional import Functional, ModuleFunction, functional
from shardwise.torch.fused_projections import FusedProjections, fused_projections
from shardwise.torch.meta_parameters import meta_parameters
from shardwise.torch.ops import register_op
from shardwise.torch.parallel_plan import plan_rules
from shardwise.torch.pickled_weights import load_pickled_weights
from shardwise.torch.placements import parallelize_plan, placements_to_spec, spec_to_placements
from shardwise.torch.weight_files import load_safetensors, save_safetensors

__all__ = [
    "Functional",
    "FusedProjections",
    "ModuleFunction",
    "functional",
    "fused_projections",
    "load_distributed_checkpoint",
    "load_pickled_weights",
    "load_safetensors",
    "meta_parameters",
    "parallelize_plan",
    "placements_to_spec",
    "plan_rules",
    "register_op",
    "save_distributed_checkpoint",
    "save_safetensors",
    "spec_to_placements",
]
