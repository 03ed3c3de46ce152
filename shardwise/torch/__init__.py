"""PyTorch modules on Shardwise, without a line changed.

from shardwise.torch import functional

function, params, buffers = functional(module)
outputs, buffers = function(params, buffers, *inputs)
"""

from shardwise.torch import _installed  # noqa: F401 - before torchax
from shardwise.torch.functional import Functional, ModuleFunction, functional
from shardwise.torch.ops import register_op
from shardwise.torch.parallel_plan import plan_rules

__all__ = ["Functional", "ModuleFunction", "functional", "plan_rules", "register_op"]
