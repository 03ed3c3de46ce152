from shardwise.compiler.kernels.triton_ir import TritonBuilder as TritonBuilder
from shardwise.kernels.decoding import paged_attention as paged_attention
from shardwise.kernels.grouped_products import grouped_dot as grouped_dot
from shardwise.kernels.losses import cross_entropy as cross_entropy
from shardwise.kernels.optimizers import AdamState as AdamState, FusedAdam as FusedAdam, adam as adam
from shardwise.kernels.norms import layer_norm as layer_norm, rms_norm as rms_norm
from shardwise.kernels.user_kernels import triton_kernel as triton_kernel
