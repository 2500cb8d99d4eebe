"""One task's partition becomes Python code: segments between waits, buffers, fusion, the code."""
