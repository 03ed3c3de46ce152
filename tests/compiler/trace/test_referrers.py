"""Chains of referrers of an object."""

from shardwise.compiler.trace.referrers import describe_referrers


class Kept:
    pass


def test_a_list_a_key_and_a_closure_are_named():
    kept = Kept()
    holder = {"last": [0, kept]}
    lines = describe_referrers(kept).splitlines()
    assert "  <Kept> is referred to by <list>[1]" in lines
    assert "  <list> is referred to by <dict>['last']" in lines
    assert holder


def test_a_closure_names_its_variables():
    def closure():
        value = Kept()
        return (lambda: value), value

    function, value = closure()
    text = describe_referrers(value)
    assert "<Kept> is referred to by <cell>, a variable of a closure" in text
    assert "by its variables value" in text
    assert function() is value


def test_an_object_without_referrers_has_no_lines():
    assert describe_referrers(Kept()) == ""
