"""What every package may use: logging, threads, locks, caches, lazy imports, terminal text."""
