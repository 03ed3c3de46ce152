"""repeat_key_uses: allow a recomputation to use PRNG keys again, for the setting `debug_key_reuse`."""

from shardwise.compiler.ir.op import Op
from shardwise.compiler.ops.random.key_data import KeyData


def repeat_key_uses(op: Op) -> Op:
    """Return the op of a recomputation, in which keys are reused on purpose."""
    if isinstance(op, KeyData):
        return KeyData()
    return op.map_programs(
        lambda program: program.with_equations([e.replace(op=repeat_key_uses(e.op)) for e in program.equations])
    )
