"""Random bits and keys, and samplers of distributions."""
