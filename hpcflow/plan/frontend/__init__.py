"""From the graph to the program that the fetches need: pruning, captures, simplification."""
