"""The runtime on top of PJRT: devices, arrays, shardings, executables and the persistent compilation cache."""
