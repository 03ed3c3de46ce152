"""Every op, one family a file; each op holds all its rules. CONTRIBUTING.md shows how to add one."""
