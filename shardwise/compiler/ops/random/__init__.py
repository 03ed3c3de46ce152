"""PRNG keys, and random bits that one op computes."""
