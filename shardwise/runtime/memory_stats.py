"""The account of one device's memory for one run of a compiled program."""

from typing import Any, final

from shardwise.compiler.ir.record import record


@final
@record
class MemoryStats:
    """How many bytes arguments, results, and what lies between them take; `host_…`: in memory of the host.

    `alias` is what results share with donated arguments. All of it is taken for as long as the program runs.
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
    def of(executable: Any) -> "MemoryStats":
        """What XLA says of an executable. Its own figure for the peak leaves out what lies between: it is not taken."""
        found = executable.get_compiled_memory_stats()
        return MemoryStats(**{name: int(getattr(found, name)) for name in MemoryStats.__annotations__})

    @property
    def peak_memory_in_bytes(self) -> int:
        """The most that the device holds at once."""
        shared = self.output_size_in_bytes - self.alias_size_in_bytes
        return self.argument_size_in_bytes + shared + self.temp_size_in_bytes + self.generated_code_size_in_bytes
