"""PJRT plugins: the shared libraries through which XLA uses GPUs, TPUs and other devices than the CPU."""
