"""CompilerEffortLevel: XLA's effort, by settings and by compiler options."""

import pytest

import shardwise as sw
from shardwise import CompilerEffortLevel
from shardwise.base import _jaxlib
from shardwise.execute.compiler_effort import effort_options
from shardwise.execute.executor import compiler_options


def test_levels_have_names():
    assert CompilerEffortLevel("O1") is CompilerEffortLevel.O1 is CompilerEffortLevel(19)
    assert [level.value for level in CompilerEffortLevel] == [0, 9, 19, 29, 39]
    with pytest.raises(ValueError, match="O4"):
        CompilerEffortLevel("O4")


def test_settings_are_compiler_options():
    assert list(effort_options()) == []
    with sw.config.override("optimization_level", "O1"), sw.config.override("jax_memory_fitting_level", "O3"):
        assert dict(effort_options()) == {"optimization_level": 19, "memory_fitting_level": 39}


@pytest.mark.parametrize("level", [CompilerEffortLevel.O2, "O2", 29], ids=str)
def test_compiler_options_accept_levels(level):
    options = compiler_options({"optimization_level": level}, "jit")
    assert options == (("optimization_level", 29),)
    assert _jaxlib.compile_options(1, 1, None, options).executable_build_options.optimization_level == 29


def test_programs_are_compiled_with_levels():
    for level in CompilerEffortLevel:
        assert sw.jit(lambda x: x + 1, compiler_options={"memory_fitting_level": level})(1) == 2
