"""Code generation: compiles the partition of one task to Python segments.

Steps: operator fusion, the cut into segments between waits, buffer assignment, and the Python text.
"""
