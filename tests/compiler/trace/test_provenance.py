"""The user's lines and scopes of equations."""

from shardwise import numpy as jnp
from shardwise.compiler.ir.program import NOWHERE
from shardwise.compiler.ir.types import parse_type
from shardwise.compiler.trace.build import build
from shardwise.compiler.trace.provenance import current_source, named_scope, provenance, user_source

F32 = parse_type("f32[3]")


def sources(function):
    program, _ = build(function, [F32], "traced")
    return [equation.source for equation in program.equations]


def test_an_equation_has_the_line_of_the_user():
    def function(x):
        y = -x  # line 1
        return [jnp.sin(y)]  # line 2

    first = function.__code__.co_firstlineno
    found = sources(function)
    assert [(source.line, source.function) for source in found] == [(first + 1, "function"), (first + 2, "function")]
    assert all(source.file == __file__ for source in found)


def test_equations_of_a_composed_function_have_the_line_of_its_call():
    """jnp.linspace stages several ops, none of which is in a file of the user."""

    def function(x):
        return [x + jnp.linspace(x[0], 1.0, 3)]

    assert len(found := sources(function)) > 3
    assert {source.line for source in found} == {function.__code__.co_firstlineno + 1}


def test_user_source_is_the_innermost_line_outside_of_the_package():
    source = user_source()
    assert (source.file, source.function) == (
        __file__,
        "test_user_source_is_the_innermost_line_outside_of_the_package",
    )


def test_a_transformation_sets_the_source_of_what_it_stages():
    provenance.source = NOWHERE
    try:
        assert current_source() is NOWHERE
    finally:
        provenance.source = None
    assert current_source().file == __file__


def test_scopes_nest_and_end():
    def function(x):
        with named_scope("encoder"):
            with named_scope("attention"):
                y = -x
            y = -y
        return [-y]

    assert [source.scope for source in sources(function)] == [("encoder", "attention"), ("encoder",), ()]


def test_a_decorated_function_runs_in_its_scope():
    @named_scope("layer")
    def layer(x):
        return -x

    assert [source.scope for source in sources(lambda x: [layer(x)])] == [("layer",)]


def test_scopes_of_the_caller_are_not_recorded():
    """The program may be used in several scopes: `inline` adds the scope of each call."""
    with named_scope("outside"):
        found = sources(lambda x: [-x])
    assert [source.scope for source in found] == [()]


def test_scopes_of_a_transformed_equation_are_not_recorded_in_a_new_program():
    provenance.source = NOWHERE.within(("outside",))
    try:
        found = sources(lambda x: [-x])
        assert current_source().scope == ("outside",)
    finally:
        provenance.source = None
    assert [source.scope for source in found] == [()]


def test_a_scope_is_added_once():
    source = NOWHERE.within(("encoder", "attention"))
    assert source.within(("encoder",)) == source.within(()) == source
    assert source.within(("model",)).scope == ("model", "encoder", "attention")
