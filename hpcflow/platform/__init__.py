"""Utilities for all packages: logging, threads, locks, caches, lazy imports, terminal text."""
