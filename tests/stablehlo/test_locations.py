"""Locations of modules as source lines."""

import pytest

from shardwise.base import _jaxlib
from shardwise.stablehlo.locations import source_of


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ('"model.py":12:3', ("model.py", 12, "", ())),
        (
            '"jit(f)/encoder/jvp()/layer/dot"(callsite("apply"("model.py":7:2 to :9) at "main"("train.py":3:1)))',
            ("model.py", 7, "apply", ("encoder", "layer")),
        ),
        ('"encoder/model.py:7/dot"("model.py":7:0)', ("model.py", 7, "", ("encoder",))),
        ('fused["a.py":1:2, "b.py":3:4]', ("a.py", 1, "", ())),
        ("unknown", ("", 0, "", ())),
    ],
)
def test_lines_functions_and_scopes(location, expected):
    module = _jaxlib.parse_module(f"func.func @main() {{ return loc({location}) }}")
    source = source_of(module.body.operations[0].regions[0].blocks[0].operations[0].operation.location)
    assert (source.file, source.line, source.function, source.scope) == expected


def test_the_line_of_the_text_if_an_op_has_no_location():
    module = _jaxlib.parse_module("func.func @main() {\n  return\n}")
    source = source_of(module.body.operations[0].regions[0].blocks[0].operations[0].operation.location)
    assert source.place == "<stablehlo>:2"
