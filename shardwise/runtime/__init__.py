"""Devices, arrays and executables: what is left of a program when it runs. The rest is PJRT's."""
