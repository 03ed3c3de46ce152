"""Soak: train for a long time on several processes while random faults happen. `python -m tests.soak.run` starts it."""
