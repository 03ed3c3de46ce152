"""jvp of programs without active inputs."""

from shardwise.compiler.transforms.jvp import jvp_program
from tests.compiler.transforms.programs import SQUARE


def test_without_active_inputs_no_output_has_a_tangent():
    derivative, moving = jvp_program(SQUARE, (False,))
    assert derivative == SQUARE
    assert moving == (False,)
