"""Intermediate representation: the program as plain data, and helpers to rewrite it."""
