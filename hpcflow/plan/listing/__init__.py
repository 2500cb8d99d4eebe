"""A plan as text, JSON and diagrams."""
