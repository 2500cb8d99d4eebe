"""Verifiers: passes preserve effects, plans do not deadlock; the summed-loss warning."""
