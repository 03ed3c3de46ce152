"""Random program × random mesh × random layouts: every stage must equal the program on one device."""
