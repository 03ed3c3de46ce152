"""PyTorch modules on Shardwise, without a line changed.

from shardwise.torch import functional

function, params, buffers = functional(module)
outputs, buffers = function(params, buffers, *inputs)
"""

from shardwise.torch import _installed  # noqa: F401 - before torchax
from shardwise.torch.functional import Functional, ModuleFunction, functional
from shardwise.torch.ops import register_op
from shardwise.torch.parallel_plan import plan_rules
from shardwise.torch.weight_files import load_safetensors, save_safetensors

__all__ = [
    "Functional",
    "ModuleFunction",
    "functional",
    "load_safetensors",
    "plan_rules",
    "register_op",
    "save_safetensors",
]
