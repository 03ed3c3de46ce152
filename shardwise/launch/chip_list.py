"""The chips that `--hardware` accepts by name: those of the built-in table and of the user's."""

import sys

from rich.console import Console
from rich.table import Table

from shardwise.compiler.plan.hardware import built_in_chips, known_chips


def chip_names() -> tuple[str, ...]:
    """Return the names of all chips."""
    return tuple(known_chips())


def print_chips() -> None:
    """Print a table of all chips, with the specs that predictions depend on most."""
    table = Table("chip", "platform", "bf16 flops/s", "memory", "memory/s", "links/s", "devices on fast links", "from")
    for name, chip in known_chips().items():
        table.add_row(
            name,
            chip.platform,
            _si(chip.bf16_flops),
            f"{_si(chip.memory)}B",
            f"{_si(chip.memory_bandwidth)}B",
            f"{_si(chip.fast_link.bandwidth)}B, {_si(chip.slow_link.bandwidth)}B",
            f"{chip.fast_domain_size:,}",
            "Shardwise" if name in built_in_chips() else "your table",
        )
    width = None if sys.stdout.isatty() else 140  # a file has no width
    Console(highlight=False, markup=False, width=width).print(table)


def _si(number: float) -> str:
    """Return a number with a prefix, such as `989 T`."""
    for prefix, unit in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if number >= unit:
            return f"{number / unit:.3g} {prefix}"
    return f"{number:.3g} "
