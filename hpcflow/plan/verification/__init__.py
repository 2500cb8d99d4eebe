"""Verifiers: passes preserve effects, plans do not deadlock; warnings of suspicious graphs."""
