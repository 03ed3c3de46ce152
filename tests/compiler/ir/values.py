"""Values and a source for programs that tests build by hand."""

import numpy as np

from shardwise.compiler.ir.program import Source, Value
from shardwise.compiler.ir.types import ArrayType

THREE = ArrayType((3,), np.float32)
LINE = Source("/home/me/train.py", 12, "step")


def values(count: int, type: ArrayType = THREE) -> list[Value]:
    return [Value(type) for _ in range(count)]
