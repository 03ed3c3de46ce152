"""Random numbers: bits by either generator, and samplers, which are programs of other ops."""
