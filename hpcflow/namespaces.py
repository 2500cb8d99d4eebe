"""Namespaces: the names of `hf.nn`, `hf.math` and similar modules, and their defining modules.

They hold the names of TensorFlow 1's modules of the same names that hpcflow has. `hf.rnn_cell` is
`hf.nn.rnn_cell`. A namespace is a module without a file: `hpcflow/__init__.py` creates it by
`lazy_imports.namespace`, which says how its names are written. `tools/stubs.py` writes the stub of
each for type checkers.
"""

NAMESPACES: dict[str, dict[str, str]] = {
    "bitwise": {
        "hpcflow.ops.math.bitwise_ops": (
            "bitwise_and bitwise_or bitwise_xor invert left_shift right_shift"
        ),
    },
    "distributions": {
        "hpcflow.ops.random.probability_distributions": (
            "Bernoulli Categorical Normal Uniform kl_divergence"
        ),
    },
    "image": {
        "hpcflow.ops.array.space_depth_ops": "extract_image_patches",
        "hpcflow.ops.image.image_colors": (
            "adjust_brightness adjust_contrast adjust_gamma adjust_hue adjust_saturation "
            "convert_image_dtype grayscale_to_rgb hsv_to_rgb per_image_standardization "
            "random_brightness random_contrast random_hue random_saturation rgb_to_grayscale "
            "rgb_to_hsv"
        ),
        "hpcflow.ops.image.image_resize": (
            "ResizeMethod resize=resize_images resize_bilinear resize_images "
            "resize_nearest_neighbor"
        ),
        "hpcflow.ops.image.image_transforms": (
            "central_crop crop_to_bounding_box flip_left_right flip_up_down image_gradients "
            "pad_to_bounding_box psnr random_flip_left_right random_flip_up_down "
            "resize_image_with_crop_or_pad resize_with_crop_or_pad=resize_image_with_crop_or_pad "
            "rot90 total_variation transpose=transpose_image transpose_image"
        ),
        "hpcflow.ops.random.shuffle_multinomial": "random_crop",
    },
    "initializers": {
        "hpcflow.ops.variables.initializer_objects": (
            "constant=Constant glorot_normal=GlorotNormal glorot_uniform=GlorotUniform he_normal "
            "he_uniform identity=Identity lecun_normal lecun_uniform ones=Ones "
            "orthogonal=Orthogonal random_normal=RandomNormal random_uniform=RandomUniform "
            "truncated_normal=TruncatedNormal uniform_unit_scaling=UniformUnitScaling "
            "variance_scaling=VarianceScaling zeros=Zeros"
        ),
        "hpcflow.ops.variables.variable_ops": (
            "global_variables=global_variables_initializer "
            "local_variables=local_variables_initializer variables=variables_initializer"
        ),
    },
    "linalg": {
        "hpcflow.ops.linalg.einsum_ops": "einsum tensordot",
        "hpcflow.ops.linalg.linalg_ops": (
            "cholesky cholesky_solve det=matrix_determinant expm inv=matrix_inverse logdet "
            "lstsq=matrix_solve_ls matvec slogdet solve=matrix_solve "
            "triangular_solve=matrix_triangular_solve"
        ),
        "hpcflow.ops.linalg.matmul_ops": "matmul",
        "hpcflow.ops.linalg.matrix_decomposition_ops": (
            "eigh=self_adjoint_eig eigvalsh=self_adjoint_eigvals qr svd"
        ),
        "hpcflow.ops.linalg.matrix_diagonal_ops": (
            "adjoint band_part=matrix_band_part diag=matrix_diag diag_part=matrix_diag_part eye "
            "matrix_transpose norm set_diag=matrix_set_diag tensor_diag=diag "
            "tensor_diag_part=diag_part trace"
        ),
        "hpcflow.ops.math.elementwise_math_ops": "cross",
        "hpcflow.ops.math.norm_clipping": "global_norm",
    },
    "losses": {
        "hpcflow.ops.nn.weighted_losses": (
            "Reduction absolute_difference add_loss compute_weighted_loss cosine_distance "
            "get_losses get_regularization_loss get_regularization_losses get_total_loss "
            "hinge_loss huber_loss log_loss mean_pairwise_squared_error mean_squared_error "
            "sigmoid_cross_entropy softmax_cross_entropy sparse_softmax_cross_entropy"
        ),
    },
    "math": {
        "hpcflow.ops.array.cumulative_ops": "cumprod cumsum cumulative_logsumexp top_k",
        "hpcflow.ops.array.segment_ops": (
            "segment_max segment_mean segment_min segment_prod segment_sum unsorted_segment_max "
            "unsorted_segment_mean unsorted_segment_min unsorted_segment_prod "
            "unsorted_segment_sqrt_n unsorted_segment_sum"
        ),
        "hpcflow.ops.linalg.matmul_ops": "matmul",
        "hpcflow.ops.math.arithmetic_ops": (
            "abs add add_n conj cos divide equal exp floordiv greater greater_equal less "
            "less_equal log log1p logical_and logical_not logical_or logical_xor maximum minimum "
            "mod multiply multiply_no_nan negative not_equal pow rsqrt sigmoid sign sin sqrt "
            "square subtract tanh truediv"
        ),
        "hpcflow.ops.math.complex_number_ops": "angle imag real",
        "hpcflow.ops.math.elementwise_math_ops": (
            "accumulate_n acos acosh asin asinh atan atan2 atanh ceil cosh cross expm1 floor "
            "floormod is_finite is_inf is_nan nextafter polyval reciprocal rint scalar_mul sinh "
            "squared_difference tan xdivy xlogy"
        ),
        "hpcflow.ops.math.histogram_ops": "bincount confusion_matrix count_nonzero",
        "hpcflow.ops.math.moments": "reduce_euclidean_norm reduce_std reduce_variance",
        "hpcflow.ops.math.reduction_ops": (
            "argmax argmin reduce_all reduce_any reduce_logsumexp reduce_max reduce_mean "
            "reduce_min reduce_prod reduce_sum"
        ),
        "hpcflow.ops.math.special_function_ops": (
            "betainc digamma erf erfc igamma igammac lbeta lgamma polygamma zeta"
        ),
        "hpcflow.ops.nn.nn_ops": "log_sigmoid",
    },
    "metrics": {
        "hpcflow.ops.metrics.confusion_metrics": (
            "auc false_negatives false_negatives_at_thresholds false_positives "
            "false_positives_at_thresholds precision precision_at_thresholds recall "
            "recall_at_thresholds sensitivity_at_specificity specificity_at_sensitivity "
            "true_negatives true_negatives_at_thresholds true_positives "
            "true_positives_at_thresholds"
        ),
        "hpcflow.ops.metrics.mean_metrics": (
            "accuracy mean mean_absolute_error mean_cosine_distance mean_iou "
            "mean_per_class_accuracy mean_relative_error mean_squared_error mean_tensor "
            "percentage_below root_mean_squared_error"
        ),
        "hpcflow.ops.metrics.top_k_metrics": (
            "average_precision_at_k precision_at_k precision_at_top_k recall_at_k recall_at_top_k "
            "sparse_average_precision_at_k sparse_precision_at_k"
        ),
    },
    "nn": {
        "": "rnn_cell",
        "hpcflow.ops.nn.activations": (
            "crelu gelu hard_sigmoid l2_normalize leaky_relu relu_layer selu softsign swish "
            "xw_plus_b zero_fraction"
        ),
        "hpcflow.ops.nn.attention": "scaled_dot_product_attention",
        "hpcflow.ops.nn.candidate_sampling_ops": (
            "all_candidate_sampler compute_accidental_hits fixed_unigram_candidate_sampler "
            "log_uniform_candidate_sampler uniform_candidate_sampler"
        ),
        "hpcflow.ops.nn.convolution_functions": (
            "atrous_conv2d atrous_conv2d_transpose conv1d conv1d_transpose conv2d "
            "conv2d_backprop_filter conv2d_backprop_input conv2d_transpose conv3d "
            "conv3d_backprop_filter_v2 conv3d_transpose convolution depthwise_conv2d "
            "depthwise_conv2d_native depthwise_conv2d_native_backprop_filter "
            "depthwise_conv2d_native_backprop_input separable_conv2d"
        ),
        "hpcflow.ops.nn.ctc_ops": (
            "ctc_beam_search_decoder ctc_greedy_decoder ctc_loss ctc_loss_v2"
        ),
        "hpcflow.ops.rnn.dynamic_rnn": "bidirectional_dynamic_rnn dynamic_rnn raw_rnn",
        "hpcflow.ops.nn.embedding_lookup": (
            "embedding_lookup embedding_lookup_sparse safe_embedding_lookup_sparse"
        ),
        "hpcflow.ops.math.arithmetic_ops": "sigmoid tanh",
        "hpcflow.ops.math.moments": (
            "moments normalize_moments sufficient_statistics weighted_moments"
        ),
        "hpcflow.ops.nn.morphology": "dilation2d erosion2d",
        "hpcflow.ops.nn.nn_ops": (
            "bias_add dropout elu in_top_k l2_loss log_sigmoid log_softmax relu relu6 "
            "sigmoid_cross_entropy_with_logits softmax softplus "
            "sparse_softmax_cross_entropy_with_logits"
        ),
        "hpcflow.ops.nn.per_example_losses": (
            "log_poisson_loss softmax_cross_entropy_with_logits "
            "softmax_cross_entropy_with_logits_v2 weighted_cross_entropy_with_logits"
        ),
        "hpcflow.ops.nn.normalization_ops": (
            "batch_norm_with_global_normalization batch_normalization fused_batch_norm "
            "group_normalization instance_normalization layer_normalization "
            "local_response_normalization lrn synchronized_moments"
        ),
        "hpcflow.ops.nn.pooling_ops": (
            "avg_pool avg_pool1d avg_pool2d avg_pool3d max_pool max_pool1d max_pool2d max_pool3d "
            "max_pool_with_argmax pool"
        ),
        "hpcflow.ops.rnn.static_rnn": (
            "static_bidirectional_rnn static_rnn static_state_saving_rnn"
        ),
        "hpcflow.ops.nn.sampled_softmax": "nce_loss sampled_softmax_loss",
        "hpcflow.ops.array.cumulative_ops": "top_k",
    },
    "random": {
        "hpcflow.ops.random.random_ops": (
            "gamma=random_gamma normal=random_normal poisson=random_poisson set_random_seed "
            "truncated_normal uniform=random_uniform"
        ),
        "hpcflow.ops.random.shuffle_multinomial": (
            "categorical multinomial shuffle=random_shuffle stateless_categorical stateless_shuffle"
        ),
        "hpcflow.ops.random.stateless_random": (
            "stateless_gamma=stateless_random_gamma stateless_normal=stateless_random_normal "
            "stateless_poisson=stateless_random_poisson stateless_truncated_normal "
            "stateless_uniform=stateless_random_uniform"
        ),
    },
    "rnn_cell": {
        "hpcflow.ops.rnn.rnn_cell_wrappers": (
            "DeviceWrapper DropoutWrapper MultiRNNCell ResidualWrapper"
        ),
        "hpcflow.ops.rnn.rnn_cells": (
            "BasicLSTMCell BasicRNNCell GRUCell LSTMCell LSTMStateTuple RNNCell"
        ),
    },
    "signal": {
        "hpcflow.ops.linalg.fft_ops": (
            "fft fft2d fft3d fftshift ifft ifft2d ifft3d ifftshift irfft irfft2d irfft3d rfft "
            "rfft2d rfft3d"
        ),
    },
    "spectral": {
        "hpcflow.ops.linalg.fft_ops": (
            "fft fft2d fft3d ifft ifft2d ifft3d irfft irfft2d irfft3d rfft rfft2d rfft3d"
        ),
    },
    "strings": {
        "hpcflow.ops.strings.string_ops": (
            "as_string join=string_join length=string_length lower=string_lower reduce_join "
            "regex_full_match regex_replace strip=string_strip substr "
            "to_hash_bucket=string_to_hash_bucket to_hash_bucket_fast=string_to_hash_bucket_fast "
            "to_hash_bucket_strong=string_to_hash_bucket_strong to_number=string_to_number "
            "upper=string_upper"
        ),
    },
}
