"""The script needs an argument that is not given."""

import sys

import hpcflow as hf

rate = float(sys.argv[1])  # the mistake
w = hf.Variable(hf.zeros([2]), name="w")
