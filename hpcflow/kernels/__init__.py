"""HOW numbers are made: a table (op, device kind) -> kernel. Imports leaves, dtypes, numpy."""
