"""Transformations, Program → Program: jvp, linearize, transpose, vmap, remat, inline, dce, hoist and others."""

from shardwise.compiler.ir.dispatch import installed
from shardwise.compiler.trace.build import build, rewrite
from shardwise.compiler.transforms.dce import dce
from shardwise.compiler.transforms.drop_effects import without_effects
from shardwise.compiler.transforms.erase_varying import erase_varying
from shardwise.compiler.transforms.inline import inline
from shardwise.compiler.transforms.jvp import jvp_program
from shardwise.compiler.transforms.linearize import linearize_program
from shardwise.compiler.transforms.lower_keys import lower_keys
from shardwise.compiler.transforms.remat import rematerialize_program
from shardwise.compiler.transforms.shrink_residuals import shrink_loop_residuals
from shardwise.compiler.transforms.transpose import transpose_program
from shardwise.compiler.transforms.vmap import map_function, vmap_program


class _ProgramTransforms:
    """The transformations that rules of ops reach through `installed.transforms`."""

    jvp = staticmethod(jvp_program)
    linearize = staticmethod(linearize_program)
    transpose = staticmethod(transpose_program)
    vmap = staticmethod(vmap_program)
    map_function = staticmethod(map_function)
    rematerialize = staticmethod(rematerialize_program)
    build = staticmethod(build)
    rewrite = staticmethod(rewrite)
    inline = staticmethod(inline)
    shrink_loop_residuals = staticmethod(shrink_loop_residuals)
    dce = staticmethod(dce)
    without_effects = staticmethod(without_effects)
    erase_varying = staticmethod(erase_varying)
    lower_keys = staticmethod(lower_keys)


installed.transforms = _ProgramTransforms()
