"""Types and programs from text, for the tests of control ops."""

from shardwise.compiler.ir.types import parse_type
from shardwise.compiler.trace.build import rewrite


def types(text):
    return [parse_type(word) for word in text.split()]


# Types of control ops.


def program(name, text, body):
    return rewrite(name, types(text), body)
