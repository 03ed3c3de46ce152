"""Communication between devices, and collectives over named axes."""
