"""Which generator serves a function. A new function is a name in a row, a new family a row.

A generator is given a `Draw` and the function's name, and returns the call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tools.oracle import (
    arrays,
    elementwise,
    matrices,
    metrics,
    networks,
    operators,
    programs,
    strings,
)
from tools.oracle.draw import ANY, COMPLEX, INTS, NUMBERS, REALS, SIGNED, WIDE, Case, Draw

Family = Callable[[Draw, str], Case]

SCOPES = frozenset(
    "NoGradient NotDifferentiable add_check_numerics_ops add_to_collection add_to_collections "
    "assert_variables_initialized colocate_with control_dependencies device get_collection "
    "get_collection_ref get_default_graph get_default_session get_variable_scope import_graph_def "
    "is_variable_initialized local_variables model_variables moving_average_variables "
    "no_regularizer placeholder reset_default_graph set_random_seed sparse_placeholder "
    "report_uninitialized_variables variables_initializer global_variables trainable_variables "
    "global_variables_initializer local_variables_initializer matching_files read_file write_file "
    "losses.add_loss losses.get_losses losses.get_regularization_loss "
    "losses.get_regularization_losses losses.get_total_loss".split()
)  # they compute nothing: scopes, collections, files


def _both(names: str) -> str:
    """These operators of tensors and of variables."""
    return " ".join(f"{cls}.__{n}__" for cls in ("Tensor", "Variable") for n in names.split())


ROWS: list[tuple[Family, str]] = [
    (
        partial(elementwise.unary, dtypes=NUMBERS),
        "negative square math.negative math.square sign math.sign",
    ),
    (partial(elementwise.unary, dtypes=SIGNED), "abs math.abs"),
    (
        elementwise.unary,
        "exp log log1p expm1 sqrt rsqrt sin cos tan tanh sigmoid ceil floor round rint asinh "
        "atan sinh cosh erf erfc lgamma digamma is_finite is_inf is_nan reciprocal log_sigmoid "
        "nn.relu nn.relu6 nn.elu nn.selu nn.softplus nn.softsign nn.swish nn.tanh nn.sigmoid "
        "nn.l2_loss",
    ),
    (partial(elementwise.unary, low=-1.2, high=1.2), "acos asin atanh"),
    (partial(elementwise.unary, low=0.5), "acosh"),
    (
        partial(elementwise.unary, dtypes=COMPLEX),
        "angle conj real imag math.angle math.conj math.real math.imag",
    ),
    (partial(elementwise.unary, dtypes=("bool",)), "logical_not"),
    (
        partial(elementwise.unary, dtypes=ANY),
        "to_float to_double to_int32 to_int64 to_complex64 to_complex128 to_bfloat16 identity "
        "stop_gradient nn.zero_fraction",
    ),
    (partial(elementwise.unary, dtypes=INTS), "bitwise.invert"),
    (elementwise.binary, "add subtract multiply maximum minimum squared_difference"),
    (
        partial(elementwise.binary, dtypes=SIGNED),
        "divide truediv floordiv mod div realdiv floor_div floormod truncatediv truncatemod",
    ),
    (partial(elementwise.binary, dtypes=REALS), "pow div_no_nan atan2"),
    (partial(elementwise.binary, dtypes=("int32", "int64"), low=0), "pow"),
    (
        partial(elementwise.binary, dtypes=INTS),
        "bitwise.bitwise_and bitwise.bitwise_or bitwise.bitwise_xor",
    ),
    (partial(elementwise.binary, dtypes=INTS, low=0), "bitwise.left_shift bitwise.right_shift"),
    (partial(elementwise.binary, dtypes=WIDE, low=0.3), "igamma igammac"),
    (partial(elementwise.binary, dtypes=WIDE, low=1.2), "zeta"),
    (partial(elementwise.binary, dtypes=("float32",), low=1, high=3), "polygamma"),
    (partial(elementwise.binary, dtypes=("bool",)), "logical_and logical_or logical_xor"),
    (partial(elementwise.binary, dtypes=ANY), "equal not_equal"),
    (elementwise.comparison, "less less_equal greater greater_equal"),
    (elementwise.same_shapes, "add_n accumulate_n"),
    (elementwise.clip_by_value, "clip_by_value"),
    (elementwise.cast, "cast saturate_cast"),
    (elementwise.bitcast, "bitcast"),
    (elementwise.complex_pair, "complex"),
    (elementwise.triple_gamma, "betainc"),
    (partial(elementwise.unary, dtypes=WIDE, low=0.2), "lbeta"),
    (elementwise.cross, "cross"),
    (elementwise.scalar_mul, "scalar_mul math.scalar_mul"),
    (elementwise.checked, "check_numerics verify_tensor_all_finite"),
    (partial(elementwise.reduction), "reduce_sum reduce_prod reduce_mean"),
    (partial(elementwise.reduction, dtypes=SIGNED), "reduce_max reduce_min"),
    (partial(elementwise.reduction, dtypes=("bool",)), "reduce_all reduce_any"),
    (
        partial(elementwise.reduction, dtypes=WIDE),
        "reduce_logsumexp math.reduce_euclidean_norm math.reduce_std math.reduce_variance",
    ),
    (elementwise.arg_reduction, "argmax argmin arg_max arg_min"),
    (elementwise.scan, "cumsum cumprod math.cumulative_logsumexp"),
    (elementwise.norm, "norm"),
    (elementwise.count_nonzero, "count_nonzero"),
    (arrays.reshape, "reshape"),
    (arrays.one_axis, "expand_dims"),
    (arrays.squeeze, "squeeze"),
    (arrays.transpose, "transpose"),
    (arrays.shaped, "shape size"),
    (arrays.many_shapes, "shape_n"),
    (arrays.alone, "rank"),
    (arrays.like, "zeros_like ones_like"),
    (arrays.filled, "zeros ones fill"),
    (arrays.constant, "constant convert_to_tensor"),
    (arrays.concat, "concat"),
    (arrays.stack, "stack parallel_stack"),
    (arrays.unstack, "unstack"),
    (arrays.split, "split"),
    (arrays.slice_, "slice"),
    (arrays.strided_slice, "strided_slice"),
    (operators.getitem, "Tensor.__getitem__ Variable.__getitem__"),
    (arrays.gather, "gather"),
    (arrays.batch_gather, "batch_gather"),
    (arrays.gather_nd, "gather_nd"),
    (
        arrays.scatter_nd,
        "scatter_nd tensor_scatter_add tensor_scatter_nd_add tensor_scatter_nd_sub "
        "tensor_scatter_nd_update tensor_scatter_sub tensor_scatter_update",
    ),
    (arrays.pad, "pad"),
    (arrays.tile, "tile"),
    (arrays.one_hot, "one_hot"),
    (arrays.boolean_mask, "boolean_mask"),
    (arrays.reverse, "reverse reverse_v2"),
    (arrays.reverse_sequence, "reverse_sequence"),
    (arrays.sequence_mask, "sequence_mask"),
    (arrays.meshgrid, "meshgrid"),
    (arrays.linspace, "linspace lin_space"),
    (arrays.range_, "range"),
    (arrays.unique, "unique unique_with_counts"),
    (arrays.setdiff, "setdiff1d"),
    (arrays.permutation, "invert_permutation"),
    (arrays.dynamic_partition, "dynamic_partition"),
    (arrays.dynamic_stitch, "dynamic_stitch"),
    (arrays.broadcast_to, "broadcast_to"),
    (arrays.broadcast_shapes, "broadcast_dynamic_shape"),
    (arrays.static_shapes, "broadcast_static_shape"),
    (arrays.space_to_batch, "space_to_batch batch_to_space space_to_batch_nd batch_to_space_nd"),
    (arrays.depth_to_space, "depth_to_space space_to_depth"),
    (arrays.paddings_for, "required_space_to_batch_paddings"),
    (arrays.patches, "extract_image_patches"),
    (arrays.roll, "roll"),
    (arrays.repeat, "repeat"),
    (arrays.searchsorted, "searchsorted"),
    (arrays.unravel, "unravel_index"),
    (arrays.where, "where"),
    (arrays.top_k, "nn.top_k math.top_k"),
    (matrices.matmul, "matmul linalg.matmul linalg.matvec"),
    (partial(matrices.square_matrix, definite=True), "cholesky"),
    (matrices.square_matrix, "matrix_inverse matrix_determinant linalg.expm linalg.slogdet"),
    (partial(matrices.square_matrix, definite=True), "linalg.logdet self_adjoint_eigvals"),
    (matrices.any_matrix, "matrix_transpose linalg.adjoint matrix_diag_part"),
    (matrices.decomposition, "qr svd self_adjoint_eig"),
    (matrices.diagonal, "diag matrix_diag"),
    (matrices.diagonal_part, "diag_part"),
    (matrices.set_diag, "matrix_set_diag"),
    (matrices.band_part, "matrix_band_part"),
    (matrices.solve, "matrix_solve matrix_triangular_solve cholesky_solve"),
    (matrices.least_squares, "matrix_solve_ls"),
    (matrices.eye, "eye"),
    (matrices.einsum, "einsum"),
    (matrices.tensordot, "tensordot"),
    (matrices.trace, "trace"),
    (
        matrices.transform,
        "fft fft2d fft3d ifft ifft2d ifft3d signal.rfft signal.rfft2d signal.rfft3d",
    ),
    (
        elementwise.segments,
        "segment_sum segment_mean segment_prod segment_max segment_min unsorted_segment_sum "
        "unsorted_segment_mean unsorted_segment_prod unsorted_segment_max unsorted_segment_min "
        "unsorted_segment_sqrt_n",
    ),
    (elementwise.bincount, "bincount"),
    (elementwise.confusion_matrix, "confusion_matrix"),
    (elementwise.histogram, "histogram_fixed_width histogram_fixed_width_bins"),
    (partial(networks.convolution, dims=1), "nn.conv1d"),
    (networks.convolution, "nn.conv2d nn.convolution"),
    (partial(networks.convolution, dims=3), "nn.conv3d"),
    (networks.atrous, "nn.atrous_conv2d"),
    (networks.depthwise, "nn.depthwise_conv2d nn.depthwise_conv2d_native nn.separable_conv2d"),
    (partial(networks.transposed, dims=1), "nn.conv1d_transpose"),
    (networks.transposed, "nn.conv2d_transpose"),
    (partial(networks.transposed, dims=3), "nn.conv3d_transpose"),
    (
        networks.backprop,
        "nn.conv2d_backprop_input nn.conv2d_backprop_filter nn.conv3d_backprop_filter_v2 "
        "nn.depthwise_conv2d_native_backprop_input nn.depthwise_conv2d_native_backprop_filter",
    ),
    (
        networks.pooling,
        "nn.max_pool nn.avg_pool nn.max_pool2d nn.avg_pool2d nn.max_pool_with_argmax nn.pool",
    ),
    (partial(networks.pooling, dims=1), "nn.max_pool1d nn.avg_pool1d"),
    (partial(networks.pooling, dims=3), "nn.max_pool3d nn.avg_pool3d"),
    (networks.dilation, "nn.dilation2d nn.erosion2d"),
    (networks.atrous_transposed, "nn.atrous_conv2d_transpose"),
    (
        networks.sampler,
        "nn.all_candidate_sampler nn.uniform_candidate_sampler nn.log_uniform_candidate_sampler "
        "nn.fixed_unigram_candidate_sampler",
    ),
    (networks.sampled_loss, "nn.nce_loss nn.sampled_softmax_loss"),
    (networks.accidental_hits, "nn.compute_accidental_hits"),
    (networks.bias_add, "nn.bias_add"),
    (networks.softmax, "nn.softmax nn.log_softmax"),
    (
        networks.cross_entropy,
        "nn.softmax_cross_entropy_with_logits nn.softmax_cross_entropy_with_logits_v2 "
        "nn.sigmoid_cross_entropy_with_logits",
    ),
    (networks.sparse_cross_entropy, "nn.sparse_softmax_cross_entropy_with_logits"),
    (networks.weighted_cross_entropy, "nn.weighted_cross_entropy_with_logits"),
    (networks.log_poisson, "nn.log_poisson_loss"),
    (networks.in_top_k, "nn.in_top_k"),
    (networks.moments, "nn.moments nn.weighted_moments nn.sufficient_statistics"),
    (networks.normalize_moments, "nn.normalize_moments"),
    (networks.batch_normalization, "nn.batch_normalization"),
    (networks.old_batch_norm, "nn.batch_norm_with_global_normalization"),
    (networks.fused_batch_norm, "nn.fused_batch_norm"),
    (networks.l2_normalize, "nn.l2_normalize"),
    (networks.lrn, "nn.local_response_normalization nn.lrn"),
    (networks.xw_plus_b, "nn.xw_plus_b nn.relu_layer"),
    (networks.dropout, "nn.dropout"),
    (networks.leaky, "nn.leaky_relu"),
    (networks.crelu, "nn.crelu"),
    (networks.embedding, "nn.embedding_lookup"),
    (networks.sparse_embedding, "nn.embedding_lookup_sparse"),
    (networks.greedy_decoder, "nn.ctc_greedy_decoder nn.ctc_beam_search_decoder"),
    (networks.ctc_loss, "nn.ctc_loss"),
    (
        networks.rnn,
        "nn.dynamic_rnn nn.bidirectional_dynamic_rnn nn.static_rnn nn.static_bidirectional_rnn",
    ),
    (
        networks.loss,
        "losses.absolute_difference losses.mean_squared_error losses.huber_loss "
        "losses.hinge_loss losses.cosine_distance",
    ),
    (partial(networks.loss, low=0), "losses.log_loss"),
    (networks.sigmoid_loss, "losses.sigmoid_cross_entropy losses.softmax_cross_entropy"),
    (networks.sparse_softmax_loss, "losses.sparse_softmax_cross_entropy"),
    (networks.weighted_loss, "losses.compute_weighted_loss"),
    (strings.string_alone, "string_strip strings.length strings.lower strings.upper strings.strip"),
    (strings.to_number, "string_to_number strings.to_number"),
    (strings.as_string, "as_string"),
    (strings.join, "string_join strings.join"),
    (strings.reduce_join, "reduce_join"),
    (strings.substr, "substr strings.substr"),
    (
        strings.hash_bucket,
        "string_to_hash_bucket string_to_hash_bucket_fast string_to_hash_bucket_strong",
    ),
    (strings.string_split, "string_split"),
    (strings.regex, "regex_replace strings.regex_full_match"),
    (strings.coded, "encode_base64 decode_base64"),
    (strings.decode_raw, "decode_raw"),
    (strings.decode_csv, "decode_csv"),
    (matrices.sparse_alone, "sparse_tensor_to_dense sparse_reorder"),
    (matrices.sparse_softmax, "sparse_softmax"),
    (matrices.sparse_reduce, "sparse_reduce_sum"),
    (matrices.sparse_pair, "sparse_add"),
    (matrices.sparse_concat, "sparse_concat"),
    (matrices.sparse_reshape, "sparse_reshape"),
    (matrices.sparse_slice, "sparse_slice"),
    (matrices.sparse_rows, "sparse_fill_empty_rows"),
    (matrices.sparse_retain, "sparse_retain"),
    (matrices.sparse_transpose, "sparse_transpose"),
    (matrices.sparse_matmul, "sparse_tensor_dense_matmul"),
    (matrices.to_dense, "sparse_to_dense"),
    (matrices.sparse_indicator, "sparse_to_indicator"),
    (matrices.slices_mask, "sparse_mask"),
    (matrices.edit_distance, "edit_distance"),
    (elementwise.clip_by_norm, "clip_by_norm clip_by_average_norm"),
    (elementwise.global_norm, "global_norm clip_by_global_norm"),
    (
        strings.assertion,
        "assert_equal assert_none_equal assert_near assert_less assert_less_equal "
        "assert_greater assert_greater_equal assert_negative assert_positive "
        "assert_non_negative assert_non_positive",
    ),
    (
        strings.static_assertion,
        "assert_rank assert_rank_at_least assert_rank_in assert_type assert_scalar "
        "assert_integer assert_same_float_dtype",
    ),
    (strings.monotonic, "is_non_decreasing is_strictly_increasing"),
    (
        programs.scatter_variable,
        "scatter_add scatter_sub scatter_mul scatter_div scatter_max scatter_min scatter_update",
    ),
    (programs.scatter_nd_variable, "scatter_nd_add scatter_nd_sub scatter_nd_update"),
    (programs.assign, "assign assign_add assign_sub"),
    (programs.branches, "cond case"),
    (programs.loop, "while_loop"),
    (programs.mapped, "map_fn foldl foldr scan"),
    (programs.derived, "gradients hessians"),
    (
        programs.passed,
        "py_func identity_n tuple Print placeholder_with_default "
        "convert_to_tensor_or_sparse_tensor convert_to_tensor_or_indexed_slices custom_gradient "
        "make_template group no_op is_numeric_tensor as_dtype Assert",
    ),
    (
        programs.drawn,
        "random_normal random_uniform truncated_normal random.stateless_normal "
        "random.stateless_uniform random.stateless_truncated_normal",
    ),
    (programs.drawn_by_rate, "random_gamma random_poisson"),
    (programs.shuffled, "random_shuffle"),
    (programs.cropped, "random_crop"),
    (programs.categorical, "multinomial random.categorical random.stateless_categorical"),
    (
        programs.schedule,
        "train.exponential_decay train.inverse_time_decay train.natural_exp_decay "
        "train.polynomial_decay train.piecewise_constant train.cosine_decay "
        "train.cosine_decay_restarts train.linear_cosine_decay",
    ),
    (
        partial(programs.layer, dims=1),
        "layers.conv1d layers.average_pooling1d layers.max_pooling1d layers.separable_conv1d",
    ),
    (
        programs.layer,
        "layers.conv2d layers.average_pooling2d layers.max_pooling2d layers.separable_conv2d "
        "layers.conv2d_transpose layers.dense layers.flatten layers.dropout "
        "layers.batch_normalization",
    ),
    (
        partial(programs.layer, dims=3),
        "layers.conv3d layers.average_pooling3d layers.max_pooling3d layers.conv3d_transpose",
    ),
    (
        programs.optimizer,
        "train.GradientDescentOptimizer train.MomentumOptimizer train.AdamOptimizer "
        "train.AdagradOptimizer train.RMSPropOptimizer train.FtrlOptimizer "
        "train.AdadeltaOptimizer train.ProximalAdagradOptimizer "
        "train.ProximalGradientDescentOptimizer train.AdagradDAOptimizer",
    ),
    (operators.operator, _both("add sub mul truediv radd rsub rmul rtruediv")),
    (operators.operator, _both("floordiv mod rfloordiv rmod")),
    (partial(operators.operator, low=0), _both("pow rpow")),
    (operators.operator, _both("lt le gt ge")),
    (partial(operators.operator, dtypes=("bool", "int32")), _both("and or xor rand ror rxor")),
    (operators.product, _both("matmul rmatmul")),
    (operators.signed, _both("neg abs invert")),
    (operators.assigned, "Variable.assign Variable.assign_add Variable.assign_sub"),
    (
        operators.scattered,
        "Variable.scatter_add Variable.scatter_sub Variable.scatter_update Variable.scatter_mul "
        "Variable.scatter_div Variable.scatter_max Variable.scatter_min",
    ),
    (
        operators.scattered_nd,
        "Variable.scatter_nd_add Variable.scatter_nd_sub Variable.scatter_nd_update",
    ),
    (operators.read_rows, "Variable.sparse_read"),
    (operators.part_assigned, "Variable.__getitem__"),
    *metrics.FAMILIES,
]
GENERATORS: dict[str, list[Family]] = {}
for _family, _names in ROWS:
    for _name in _names.split():
        GENERATORS.setdefault(_name, []).append(_family)
for _name in [n for n in GENERATORS if "." not in n]:  # second names of functions of hf
    GENERATORS.setdefault(f"math.{_name}", GENERATORS[_name])
    GENERATORS.setdefault(f"linalg.{_name.removeprefix('matrix_')}", GENERATORS[_name])
