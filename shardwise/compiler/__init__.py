"""From a Python function to a program for each device. `pipeline.py` is the spine; the folders are its stages."""
