"""On the path of jobs of several ranks before scikit-learn: tests/light/sklearn/datasets.py."""
