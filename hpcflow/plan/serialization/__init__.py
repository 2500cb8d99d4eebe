"""Plans and partitions as bytes, and the keys of the plan cache."""
