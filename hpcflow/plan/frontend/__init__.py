"""Frontend passes: pruning to the fetches, capture hoisting, simplification."""
