"""Constants, and ops that rearrange elements at static positions."""
