"""Arguments for `tools/fuzz_api.py` as texts of Python: plausible by parameter, and hostile."""

from __future__ import annotations

import re


def listed(text: str) -> tuple[str, ...]:
    """The expressions in a text, with ` ; ` or a new line between them."""
    return tuple(e.strip() for line in text.strip().splitlines() for e in line.split(" ; "))


PRELUDE = {  # statements behind the names that the texts below use
    "foreign": "with hf.Graph().as_default():\n    foreign = hf.constant([1.0, 2.0])",
    "foreign_variable": (
        "with hf.Graph().as_default():\n    foreign_variable = hf.Variable([1.0, 2.0])"
    ),
    "endless": "endless = []\nendless.append(endless)",
    "deep": "deep = []\nfor _ in range(3000):\n    deep = [deep]",
}

TENSORS = listed(r"""
hf.constant([1.0, 2.0]) ; hf.constant([[1.0, 2.0], [3.0, 4.0]]) ; 2.0 ; [1.0, 2.0]
hf.constant(1.5) ; hf.constant([1, 2]) ; hf.constant([[0, 1], [1, 0]]) ; 3
hf.placeholder(hf.float32, [None, 3]) ; hf.placeholder(hf.float32) ; [[1, 2], [3, 4]]
hf.Variable([1.0, 2.0]) ; hf.Variable([[1.0, 2.0], [3.0, 4.0]]) ; hf.ones([1, 4, 4, 2])
hf.ones([2, 3, 4]) ; hf.zeros([0, 3]) ; np.float32([[1, 2]]) ; np.array([1, 2])
hf.constant([True, False]) ; hf.constant(['a', 'b']) ; hf.placeholder(hf.int32, [None])
hf.constant([1j, 2.0]) ; hf.placeholder(hf.float32, [2, None, 4])
hf.SparseTensor([[0, 1]], [1.0], [2, 3])
""")
AXES = listed("0 ; -1 ; 1 ; [0] ; None ; hf.constant(0) ; [0, 1]")
SHAPES = listed(r"""
[2, 3] ; [None, 3] ; [-1] ; 2 ; hf.constant([2, 3]) ; [] ; None ; [0, 2] ; (4,)
""")
DTYPES = listed(r"""
hf.float32 ; 'int32' ; np.float64 ; hf.string ; hf.bool ; hf.int64 ; hf.bfloat16
""")
NAMES = listed("'a' ; None ; 'a/b' ; 'scope/'")
WHOLE = listed("1 ; 2 ; 3 ; [1, 1] ; [1, 2, 2, 1] ; hf.constant(2) ; 0 ; 10")
REALS = listed("0.1 ; 0.5 ; 1.0 ; 2 ; 0.0 ; hf.constant(0.5)")
FLAGS = listed("True ; False ; hf.placeholder(hf.bool, []) ; None")
TEXTS = listed(r"""
'SAME' ; 'VALID' ; 'NHWC' ; 'NCHW' ; 'CONSTANT' ; 'sum' ; 'mean' ; 'a' ; 'ab,bc->ac'
""")
FUNCTIONS = listed(r"""
lambda *a: a[0] ; lambda *a: hf.constant(1.0) ; lambda *a: a ; lambda *a: hf.less(1, 2)
hf.square ; lambda *a, **k: hf.zeros([2]) ; lambda *a: np.float32(1)
""")
VARIABLES = listed(r"""
[hf.Variable([1.0, 2.0])] ; hf.Variable([1.0, 2.0]) ; None ; hf.trainable_variables()
""")
INITIALIZERS = listed(
    "hf.zeros_initializer() ; hf.ones([2]) ; lambda *a, **k: hf.zeros(a[0]) ; None"
)
LISTS = listed(r"""
[hf.constant([1.0, 2.0]), hf.Variable([1.0, 2.0])] ; [hf.ones([2, 3]), hf.ones([2, 3])]
[hf.constant([1, 2])] ; [1.0, 2.0] ; (hf.constant(1.0), hf.constant(2.0)) ; []
""")
FETCHES = listed("hf.constant(1.0) ; [hf.constant(1.0), {'a': hf.no_op()}] ; 'a:0' ; hf.no_op()")
FEEDS = listed(r"""
None ; {} ; {hf.placeholder(hf.float32, [None]): [1.0]} ; {hf.constant(1.0): 2}
""")
CELLS = listed("hf.nn.rnn_cell.GRUCell(2) ; hf.nn.rnn_cell.BasicLSTMCell(2)")

BY_NAME = (  # what a parameter of such a name takes; the first that matches
    (r"^(dtype|Tout|out_type|output_type|dtypes|.*_dtype|type)$", DTYPES),
    (r"^(name|scope|default_name|container|shared_name|op_type|.*_name|loss_collection)$", NAMES),
    (r"(axis|axes|dim|perm|dimension)$|^dims?_to", AXES),
    (r"shape|^dims$|^output_size$|^crop_size$", SHAPES),
    (r"^(tensors|values|inputs|xs|ys|tensor_list|inp|elems|data|x_list|queues|arrays)$", LISTS),
    (r"^(loop_vars|control_inputs|before|grads?_and_vars|gradients|grads|t_list|state)$", LISTS),
    (r"^cells?(_fw|_bw)?$", CELLS),
    (r"fetch|target", FETCHES),
    (r"feed", FEEDS),
    (r"^(fn|f|func|body|cond|.*_fn|function|pred|default|partitioner|activation|device|.*_func)$",
     FUNCTIONS),
    (r"initializer|regularizer|constraint", INITIALIZERS),
    (r"var_list|variables|^ref$|^var$|^variable$", VARIABLES),
    (r"^(mode|padding|data_format|reduction|equation|message|direction|.*_mode|method)$", TEXTS),
    (r"rate|alpha|beta|epsilon|decay|momentum|prob|mean|stddev|delta|scale|power|norm", REALS),
    (r"^(k|n|num.*|depth|units|filters|.*size|.*strides?|ksize|rates|.*capacity|seed)$", WHOLE),
    (r"^(length|.*steps?|max.*|min.*|limit|start|.*iterations|num|.*width|.*index)$", WHOLE),
    (r"^(use|trainable|keep|back_prop|is|training|reuse|transpose|adjoint|infer|swap)", FLAGS),
)  # fmt: skip

HOSTILE = listed(r"""
None ; 'text' ; '' ; b'bytes' ; 'a/b c' ; '\u00e9\u2028' ; '0' ; 3 ; -1 ; 0 ; -3 ; 2**31
2**63 ; 2**70 ; -(2**63) ; 1e308 ; float('nan') ; float('inf') ; 1j ; True ; [] ; () ; {}
{'a': 1} ; {1: 2, 'a': 3} ; [[1], [2, 3]] ; [None] ; [[]] ; [None, 'a'] ; ['a', 1] ; [-1, -1]
[2**40, 2**40] ; [1.5] ; [float('nan')] ; [-5, 3] ; object() ; object ; int ; ...
slice(None) ; range(3) ; {1, 2} ; iter([]) ; (i for i in [1]) ; lambda: None
lambda *a, **k: None ; lambda a, b, c, d, e: a ; lambda *a, **k: 1 / 0 ; len
lambda *a, **k: 'text' ; lambda *a, **k: [None] ; np.float16(1) ; np.int8(-1)
np.uint64(2**63) ; np.bool_(True) ; np.complex64(1j) ; np.str_('a') ; np.bytes_(b'a')
np.datetime64('2020') ; np.timedelta64(1) ; np.float64('nan') ; np.longdouble(1) ; np.array(1)
np.array([1]) ; np.array([]) ; np.array([None]) ; np.array(['a']) ; np.float16([[1, 2]])
np.zeros([0, 3]) ; np.int64 ; np.zeros(2, [('a', 'i4')]) ; np.array([2**63], 'u8')
np.array([object()]) ; np ; hf.constant('text') ; hf.constant(True)
hf.constant([1, 2], hf.int64) ; hf.constant(1j) ; hf.placeholder(hf.string)
hf.placeholder(hf.int32) ; hf.placeholder(hf.float16, [None]) ; hf.placeholder(hf.bool, [])
hf.placeholder(hf.int32, []) ; hf.zeros([3, 0, 2]) ; hf.constant(float('nan'))
hf.constant(-1) ; hf.constant([-1, -1]) ; hf.constant(2**40) ; hf.Variable(1)
hf.Variable([True]) ; hf.Variable([1.0]).handle ; foreign ; foreign_variable ; foreign.op
hf.no_op() ; hf.IndexedSlices([1.0], [0]) ; hf ; hf.SparseTensor([[0, 0]], ['a'], [1, 1])
hf.TensorArray(hf.float32, 2) ; hf.Graph() ; hf.FIFOQueue(3, hf.float32) ; hf.Session()
hf.float32 ; hf.square ; Exception('x') ; hf.nn.rnn_cell.GRUCell(2)
hf.train.AdamOptimizer(0.1) ; endless ; deep ; hf.GraphKeys ; [foreign]
{'a': hf.constant(1.0)} ; [hf.constant(1.0), 'text'] ; [hf.constant(1.0), None]
(hf.constant(1.0), hf.constant([1, 2])) ; [hf.Variable(1.0), foreign_variable]
[(None, hf.Variable(1.0))] ; [(hf.constant([1.0]), hf.Variable([1.0]))] ; [(1, 2)]
""")

# Objects whose methods are called, by what they are made with.
OBJECTS = listed(r"""
hf.constant([[1.0, 2.0], [3.0, 4.0]]) ; hf.constant([1, 2]) ; hf.placeholder(hf.float32)
hf.Variable([1.0, 2.0]) ; hf.Variable([[1, 2]]) ; hf.get_variable('v', [2, 3]) ; hf.no_op()
hf.Graph() ; hf.get_default_graph() ; hf.Session() ; hf.InteractiveSession()
hf.TensorArray(hf.float32, 3) ; hf.TensorArray(hf.float32, 2).unstack([1.0, 2.0])
hf.FIFOQueue(3, hf.float32) ; hf.FIFOQueue(3, [hf.float32, hf.int32], [[2], []])
hf.PaddingFIFOQueue(3, [hf.float32], [[None]]) ; hf.PriorityQueue(3, [hf.float32], [[]])
hf.RandomShuffleQueue(3, 1, hf.float32) ; hf.ConditionalAccumulator(hf.float32, [2])
hf.SparseConditionalAccumulator(hf.float32, [2]) ; hf.IndexedSlices([1.0], [0])
hf.SparseTensor([[0, 1]], [1.0], [2, 3]) ; hf.get_variable_scope()
hf.RegisterGradient('Square') ; hf.make_template('t', lambda x: x)
hf.get_variable('p', [4, 2], partitioner=hf.fixed_size_partitioner(2))
hf.zeros_initializer() ; hf.constant_initializer(1.0) ; hf.orthogonal_initializer()
hf.random_normal_initializer() ; hf.variance_scaling_initializer()
hf.truncated_normal_initializer() ; hf.initializers.identity() ; hf.fixed_size_partitioner(2)
hf.variable_axis_size_partitioner(64) ; hf.nn.rnn_cell.BasicRNNCell(2)
hf.nn.rnn_cell.GRUCell(2) ; hf.nn.rnn_cell.LSTMCell(2) ; hf.nn.rnn_cell.BasicLSTMCell(2)
hf.nn.rnn_cell.MultiRNNCell([hf.nn.rnn_cell.GRUCell(2)])
hf.nn.rnn_cell.DropoutWrapper(hf.nn.rnn_cell.GRUCell(2), 0.5)
hf.nn.rnn_cell.ResidualWrapper(hf.nn.rnn_cell.GRUCell(2))
hf.train.GradientDescentOptimizer(0.1) ; hf.train.MomentumOptimizer(0.1, 0.9)
hf.train.AdamOptimizer(0.1) ; hf.train.AdagradOptimizer(0.1) ; hf.train.FtrlOptimizer(0.1)
hf.train.RMSPropOptimizer(0.1) ; hf.train.LAMBOptimizer(0.1) ; hf.train.AdadeltaOptimizer()
hf.train.ExponentialMovingAverage(0.9) ; hf.train.Saver([hf.Variable(1.0)])
hf.train.Coordinator() ; hf.train.ClusterSpec({'ps': ['a:1'], 'worker': ['b:1', 'c:1']})
hf.train.SecondOrStepTimer(every_steps=2) ; hf.train.Scaffold()
hf.train.StopAtStepHook(last_step=3) ; hf.train.LoggingTensorHook([], every_n_iter=2)
hf.train.QueueRunner(hf.FIFOQueue(3, hf.float32), [hf.no_op()])
hf.train.LBFGS(hf.reduce_sum(hf.square(hf.Variable([1.0, 2.0]))))
hf.data.Dataset({hf.placeholder(hf.float32, [None, 2]): np.zeros([4, 2], 'f4')}, 2)
""")


def plausible(parameter: str) -> tuple[str, ...]:
    """What a parameter called so may well take."""
    for pattern, values in BY_NAME:
        if re.search(pattern, parameter):
            return values
    return TENSORS
