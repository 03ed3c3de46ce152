"""Models as targets of the command line: names and batches."""

from argparse import Namespace

import pytest

from shardwise.launch.load_target import CommandError
from shardwise.launch.preset_target import check_preset_name, is_preset_name, parse_batch, parse_number


def options(**given):
    return Namespace(**{"tokens": None, "sequences": None, "length": None, "microbatches": None, **given})


def test_names_are_neither_files_nor_functions():
    assert is_preset_name("llama3-70b") and is_preset_name("qwen2.5")
    assert not any(map(is_preset_name, ("train.py", "train.py:step", "package:step", "step.mlir", "step.bin", "a/b")))


def test_an_unknown_name_is_an_error_with_near_names():
    with pytest.raises(CommandError, match=r"no model 'mixtral-7b'. Did you mean 'mixtral-8x7b' or 'mixtral-8x22b'"):
        check_preset_name("mixtral-7b")


@pytest.mark.parametrize(
    ("given", "devices", "shape", "tokens"),
    [
        ({}, 16, (16, 8193), 16 * 8192),
        ({"sequences": 64, "length": 100}, 16, (64, 101), 6400),
        ({"sequences": 64, "length": 2048}, 8, (2, 32, 2049), 64 * 2048),  # 8,192 tokens per device
        ({"sequences": 56, "length": 4096}, 8, (7, 8, 4097), 56 * 4096),  # two sequences do not divide seven
        ({"tokens": "4M", "length": 4000}, 8, (125, 8, 4001), 4_000_000),
        ({"tokens": "4M"}, 64, (8, 64, 8193), 512 * 8192),  # 488 sequences are not a multiple of the devices
        ({"tokens": "10", "microbatches": 1}, 8, (1, 8193), 8192),
        ({"sequences": 9}, 8, (9, 8193), 9 * 8192),
    ],
)
def test_batches(given, devices, shape, tokens):
    batch = parse_batch(options(**given), devices)
    assert batch.shape == shape and batch.tokens == tokens


def test_batches_that_do_not_agree_are_errors():
    with pytest.raises(CommandError, match="--tokens and --sequences both state the batch"):
        parse_batch(options(tokens="4M", sequences=8), 8)
    with pytest.raises(CommandError, match="--microbatches 3 does not divide the 8 sequences"):
        parse_batch(options(microbatches=3), 8)
    with pytest.raises(CommandError, match="--memory-limit '70X': write a positive number"):
        parse_number("--memory-limit", "70X")
