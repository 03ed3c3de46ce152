"""Mutations of modules: small changes of text, which are often still valid, and damage of bytecode."""

import random
import re
from collections.abc import Callable

_NUMBER = re.compile(r"(?<![\w%#@.])-?\d+(?![\w.])")
_VALUE = re.compile(r"%[\w]+(?:#\d+)?")
_OP = re.compile(r"\bstablehlo\.\w+")
_DIM = re.compile(r"(?<=tensor<)\d+x")
_ELEMENT = re.compile(r"\b(?:f32|i32|i1|ui32|bf16|f16|i8)(?=>)")
_ENUM = re.compile(r"\b(?:LT|LE|GT|GE|EQ|NE|FLOAT|TOTALORDER|SIGNED|UNSIGNED|DEFAULT|HIGHEST|true|false)\b")
_ELEMENTS = ("f32", "i32", "i1", "ui32", "bf16", "f16", "f64", "i8", "ui8", "i64", "i4", "f8E4M3FN", "complex<f32>")
_ENUMS = ("LT", "LE", "GT", "GE", "EQ", "NE", "FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED", "HIGHEST", "true", "false")
_OPS = (
    *("add", "subtract", "multiply", "divide", "maximum", "minimum", "remainder", "power", "and", "or", "xor", "atan2"),
    *("tanh", "exponential", "log", "negate", "abs", "sign", "sqrt", "rsqrt", "floor", "ceil", "sine", "cosine", "not"),
    *("broadcast_in_dim", "reshape", "transpose", "convert", "reduce", "slice", "select", "clamp", "reverse", "cbrt"),
)
_INTEGERS = (0, 1, -1, 2, 3, 7, 8, 100, 2**31, -(2**63), 2**63 - 1, 10**30)


def _replace_one(rng: random.Random, text: str, pattern: re.Pattern[str], new: Callable[[str], str]) -> str:
    matches = list(pattern.finditer(text))
    if not matches:
        return text
    match = rng.choice(matches)
    return text[: match.start()] + new(match[0]) + text[match.end() :]


def _number(rng: random.Random, text: str) -> str:
    near = rng.random() < 0.6
    return _replace_one(
        rng, text, _NUMBER, lambda old: str(int(old) + rng.choice((-1, 1)) if near else rng.choice(_INTEGERS))
    )


def _value(rng: random.Random, text: str) -> str:
    values = _VALUE.findall(text) or ["%0"]
    return _replace_one(rng, text, _VALUE, lambda _: rng.choice(values))


def _op(rng: random.Random, text: str) -> str:
    return _replace_one(rng, text, _OP, lambda _: f"stablehlo.{rng.choice(_OPS)}")


def _same_op_everywhere(rng: random.Random, text: str) -> str:
    names = sorted(set(_OP.findall(text)))
    return text if not names else re.sub(rf"{re.escape(rng.choice(names))}\b", f"stablehlo.{rng.choice(_OPS)}", text)


def _dim(rng: random.Random, text: str) -> str:
    return _replace_one(rng, text, _DIM, lambda _: f"{rng.choice((0, 1, 2, 3, 4, 8, 16, 2**40))}x")


def _same_size_everywhere(rng: random.Random, text: str) -> str:
    old, new = rng.choice("248"), rng.choice(("0", "1", "2", "3", "4", "5", "8", "16"))
    return re.sub(rf"(?<![\w.]){old}(?![\w.])|(?<=[<x]){old}(?=x)", new, text)


def _element(rng: random.Random, text: str) -> str:
    return _replace_one(rng, text, _ELEMENT, lambda _: rng.choice(_ELEMENTS))


def _same_element_everywhere(rng: random.Random, text: str) -> str:
    return re.sub(rf"\b{rng.choice(('f32', 'i32', 'i1', 'ui32'))}(?=>)", rng.choice(_ELEMENTS), text)


def _enum(rng: random.Random, text: str) -> str:
    return _replace_one(rng, text, _ENUM, lambda _: rng.choice(_ENUMS))


def _line(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    first, second = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(3):
        case 0:
            del lines[first]
        case 1:
            lines.insert(second, lines[first])
        case _:
            lines[first], lines[second] = lines[second], lines[first]
    return "\n".join(lines)


def _characters(rng: random.Random, text: str) -> str:
    start = rng.randrange(len(text))
    noise = "".join(rng.choice('{}[]()<>"%@#:,=x0123456789 \n\\') for _ in range(rng.randrange(4)))
    return text[:start] + noise + text[start + rng.randrange(6) :]


def _nesting(rng: random.Random, text: str) -> str:
    start = rng.randrange(len(text))
    return text[:start] + rng.choice("[({<") * rng.choice((10, 400, 100_000)) + text[start:]


TEXT_MUTATIONS = (
    *(_number, _number, _value, _value, _op, _op, _enum, _enum, _element, _dim),
    *(_same_op_everywhere, _same_op_everywhere, _same_element_everywhere, _same_element_everywhere),
    *(_same_size_everywhere, _same_size_everywhere, _line, _characters, _nesting),
)


def mutate_text(rng: random.Random, text: str) -> str:
    """Return a module with one to three changes."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        text = rng.choice(TEXT_MUTATIONS)(rng, text) or " "
    return text


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    """Return bytecode with changed, missing, additional or moved bytes."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5, 30))):
        position = rng.randrange(len(changed))
        match rng.randrange(5):
            case 0:
                changed[position] ^= 1 << rng.randrange(8)
            case 1:
                changed[position] = rng.choice((0, 1, 127, 128, 255))
            case 2:
                del changed[position : position + rng.randrange(1, 8)]
            case 3:
                changed[position:position] = rng.randbytes(rng.randrange(1, 8))
            case _:
                other = rng.randrange(len(changed))
                changed[position], changed[other] = changed[other], changed[position]
        changed = changed or bytearray(b"\0")
    return bytes(changed)
