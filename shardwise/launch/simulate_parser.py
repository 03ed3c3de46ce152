"""The arguments of `shardwise calibrate`. Parsing them does not load the commands."""

from argparse import ArgumentParser
from pathlib import Path


def add_calibrate_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `shardwise calibrate`."""
    parser.add_argument("--name", default="", help="the name of the chip; by default, such as h100-measured")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="the table to write to; by default, that of the setting chip_table"
    )
