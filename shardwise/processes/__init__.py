"""Processes of one program: their environment, and the control channel between them."""
