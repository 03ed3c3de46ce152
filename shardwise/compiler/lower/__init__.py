"""Lowering: from the program of one device to StableHLO text."""
