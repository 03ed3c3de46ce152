"""A second way to compile: without XLA's fusions and algebraic simplifier, whose faults numpy cannot predict."""

UNOPTIMIZED = {"xla_disable_hlo_passes": "algsimp,fusion,simplify-fp-conversions"}
