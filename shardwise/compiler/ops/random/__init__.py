"""Random bits, and samplers built on them."""
