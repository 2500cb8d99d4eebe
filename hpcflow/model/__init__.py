"""Models `hf.Model` and `hf.Sequential`: training, evaluation and prediction by one call each.

They are written over the graph, `hf.data.Dataset` and `hf.train.TrainingSession`, and run in every
mode and on any number of ranks. Names and defaults are Keras's.
"""
