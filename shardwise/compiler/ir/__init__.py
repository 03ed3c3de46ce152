"""The intermediate representation: types, programs, the contract of an op, text, verifier, numpy evaluation."""
