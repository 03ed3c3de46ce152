"""lower_keys replaces keys by their words and changes nothing else."""

import numpy as np

import shardwise as sw
from shardwise import lax, random
from shardwise.compiler.dtypes import KEY_DTYPES
from shardwise.compiler.ir.parse import parse_program
from shardwise.compiler.ir.types import ArrayType, parse_type
from shardwise.compiler.ir.verify import verify
from shardwise.compiler.transforms.lower_keys import lower_keys


def test_a_program_without_keys_is_returned():
    program = parse_program("program f(a: f32[3]) {\n  b: f32[3] = neg a\n  return b\n}")
    assert lower_keys(program) is program


def test_ops_that_move_keys_move_their_words():
    text = """program f(a: key<fry>[6], b: i32[]) {
      c: key<fry>[2,3] = reshape[shape=(2, 3)] a
      d: key<fry>[3,2] = transpose[permutation=(1, 0)] c
      e: key<fry>[1] = dynamic_slice[sizes=(1,)] a b
      f: u32[1,2] = key_data e
      return d, f
    }"""
    program = parse_program(text)
    assert parse_program(str(program)) == program
    found = verify(lower_keys(verify(program)))
    assert [str(type) for type in found.in_types] == ["u32[6,2]", "i32[]"]
    assert [str(type) for type in found.out_types] == ["u32[3,2,2]", "u32[1,2]"]
    assert not any(equation.op.name in ("key_data", "wrap_key_data") for equation in found.walk())


def test_the_type_of_keys():
    key = ArrayType((3,), KEY_DTYPES["threefry2x32"])
    assert str(key) == "key<fry>[3]" and parse_type("key<fry>[3]") is key
    assert (key.nbytes, key.physical) == (24, ArrayType((3, 2), np.uint32))
    assert ArrayType((3,), np.float32).physical == ArrayType((3,), np.float32)


def test_loops_and_branches_carry_words():
    def run(key, keys):
        last, rows = lax.scan(lambda c, k: (random.fold_in(c, 1), random.uniform(k, (2,))), key, keys)
        return lax.cond(rows.sum() > 0, lambda: last, lambda: keys[0]), rows

    keys = random.split(random.key(0), 3)
    last, rows = sw.jit(run)(random.key(1), keys)
    wanted = random.key(1)
    for _ in range(3):
        wanted = random.fold_in(wanted, 1)
    assert bool(last == wanted)
    np.testing.assert_array_equal(rows, [random.uniform(key, (2,)) for key in keys])
