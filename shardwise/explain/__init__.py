"""What the compiler did, why, and what it costs: plans as text, shardings as pictures."""
