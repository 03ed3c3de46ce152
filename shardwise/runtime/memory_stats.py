"""MemoryStats: the memory that one device needs for one run of a compiled program."""

from typing import final

from shardwise.base._jaxlib import Executable, RuntimeFailure
from shardwise.compiler.ir.record import record


@final
@record
class MemoryStats:
    """The bytes of arguments, outputs, temporaries and code. The `host_…` fields are the bytes in host memory.

    `alias_size_in_bytes` is the part of the outputs that reuses donated arguments. All of this memory is allocated
    while the program runs.
    """

    argument_size_in_bytes: int
    output_size_in_bytes: int
    alias_size_in_bytes: int
    temp_size_in_bytes: int
    generated_code_size_in_bytes: int
    host_argument_size_in_bytes: int
    host_output_size_in_bytes: int
    host_alias_size_in_bytes: int
    host_temp_size_in_bytes: int
    host_generated_code_size_in_bytes: int

    @staticmethod
    def from_executable(executable: Executable) -> "MemoryStats":
        """Return XLA's statistics of an executable, except XLA's peak, which excludes temporaries."""
        stats = executable.get_compiled_memory_stats()
        return MemoryStats(**{name: int(getattr(stats, name)) for name in MemoryStats.__annotations__})

    @property
    def peak_memory_in_bytes(self) -> int:
        """The peak memory of the device."""
        new_outputs = self.output_size_in_bytes - self.alias_size_in_bytes
        return self.argument_size_in_bytes + new_outputs + self.temp_size_in_bytes + self.generated_code_size_in_bytes


def known_memory_stats(executable: Executable) -> MemoryStats | None:
    """Return XLA's statistics of an executable; None on platforms that have no statistics."""
    try:
        return MemoryStats.from_executable(executable)
    except RuntimeFailure:
        return None
