"""What sort of operator an entry of the database is: the rows of the table's totals."""

from __future__ import annotations

import re
from typing import Any, Final

# The kinds that a fusing compiler is there for: most of each is to be native.
CORE: Final = ("pointwise", "reduction", "view", "indexing", "pooling")

_WORDS: Final[dict[str, str]] = {
    "pointwise": """
        addcdiv addcmul clamp lerp where masked_fill logaddexp2 masked.logaddexp isin cross
        linalg.cross zero_ nn.functional.gelu nn.functional.glu nn.functional.hardswish
        nn.functional.leaky_relu nn.functional.alpha_dropout nn.functional.dropout
        nn.functional.dropout2d nn.functional.dropout3d nn.functional.feature_alpha_dropout
        native_dropout_backward addr outer kron clone contiguous to resolve_conj resolve_neg
        jiterator_2inputs_2outputs jiterator_4inputs_with_extra_args gradient
        bucketize searchsorted nn.functional.one_hot unravel_index broadcast_shapes
        cartesian_prod combinations nn.functional.threshold
    """,
    "reduction": """
        aminmax allclose equal cov corrcoef dist max min std_mean var_mean norm logsumexp
        trace trapezoid trapz linalg.norm linalg.matrix_norm linalg.vecdot linalg.vector_norm
        sum_to_size softmax log_softmax nn.functional.softmin masked.softmax masked.softmin
        masked.log_softmax masked.normalize _softmax_backward_data
        torch.ops.aten._safe_softmax.default nn.functional.normalize
        nn.functional.cosine_similarity nn.functional.pairwise_distance nn.functional.pdist cdist
        renorm
    """,
    "normalisation": """
        nn.functional.batch_norm nn.functional.group_norm nn.functional.instance_norm
        nn.functional.layer_norm nn.functional.local_response_norm nn.functional.rms_norm
        native_batch_norm native_group_norm native_layer_norm _batch_norm_with_update
        _native_batch_norm_legit
    """,
    "view": """
        H T mH mT t alias_copy as_strided as_strided_copy atleast_1d atleast_2d atleast_3d
        broadcast_tensors broadcast_to chunk diagonal diagonal_copy dsplit hsplit vsplit expand
        expand_as expand_copy flatten linalg.diagonal meshgrid movedim narrow narrow_copy permute
        permute_copy ravel reshape reshape_as select slice split split_with_sizes
        split_with_sizes_copy squeeze squeeze_copy t_copy tensor_split transpose transpose_copy
        unbind unbind_copy unflatten unfold unfold_copy unsafe_chunk unsafe_split unsqueeze
        unsqueeze_copy view view_as view_copy view_as_complex view_as_real resize_ resize_as_
        as_strided_scatter diagonal_scatter select_scatter slice_scatter
        cat stack hstack vstack dstack column_stack block_diag _chunk_cat diag diag_embed diagflat
        flip fliplr flipud roll rot90 repeat tile repeat_interleave constant_pad_nd
        nn.functional.pad nn.functional.channel_shuffle nn.functional.pixel_shuffle
        nn.functional.pixel_unshuffle nn.functional.unfold tril triu fft.fftshift fft.ifftshift
        diff
    """,
    "indexing": """
        __getitem__ _unsafe_masked_index _unsafe_masked_index_put_accumulate gather index_add
        index_copy index_fill index_put index_reduce index_select masked_scatter masked_select
        nn.functional.embedding nn.functional.embedding_bag nonzero nonzero_static argwhere put
        take take_along_dim scatter scatter_add scatter_reduce
    """,
    "resampling": """
        nn.functional.interpolate nn.functional.upsample_bilinear nn.functional.upsample_nearest
        _upsample_bilinear2d_aa nn.functional.grid_sample grid_sampler_2d grid_sampler_3d
    """,
    "creation": """
        arange empty empty_like empty_permuted empty_strided eye full full_like linspace logspace
        new_empty new_empty_strided new_full new_ones new_zeros ones ones_like scalar_tensor
        tril_indices triu_indices zeros zeros_like linalg.vander
    """,
    "random": """
        bernoulli cauchy exponential geometric log_normal multinomial normal rand_like randint
        randint_like randn randn_like uniform rand nn.functional.rrelu
    """,
    "sort, scan, search": """
        argsort sort msort topk kthvalue median nanmedian mode masked.median quantile nanquantile
        unique unique_consecutive cumsum cumprod cummax cummin logcumsumexp masked.cumsum
        masked.cumprod cumulative_trapezoid bincount histc histogram histogramdd _segment_reduce
    """,
    "matrix product": """
        __rmatmul__ addbmm addmm addmv baddbmm bmm dot einsum inner matmul mm mv tensordot vdot
        chain_matmul linalg.multi_dot linalg.matrix_power nn.functional.linear
        nn.functional.bilinear torch._scaled_mm torch._scaled_mm_v2
        nn.functional.scaled_dot_product_attention nn.functional.multi_head_attention_forward
        torch.ops.aten._efficient_attention_forward torch.ops.aten._flash_attention_forward
        nn.functional.linear_cross_entropy
    """,
    "linear algebra": """
        cholesky cholesky_inverse cholesky_solve geqrf logdet lu lu_solve lu_unpack matrix_exp
        ormqr pca_lowrank pinverse qr svd svd_lowrank triangular_solve
    """,
    "reading a number": "item",
    "sparse": "to_sparse sparse.mm sparse.sampled_addmm",
}
_NAMES: Final = {name: kind for kind, text in _WORDS.items() for name in text.split()}
_PATTERNS: Final = (
    (r".*(pool|unpool)\w*$", "pooling"),
    (r"nn\.functional\..*(loss|entropy|kl_div).*", "loss"),
    (r"nn\.functional\.conv.*", "convolution"),
    (r"max_pool2d_with_indices_backward$", "pooling"),
    (r"linalg\..*", "linear algebra"),
    (r"(fft\..*|stft|istft)$", "Fourier transform"),
    (r"signal\.windows\..*", "creation"),
    (r"jiterator_.*", "pointwise"),
)
_CLASSES: Final = {
    "UnaryUfuncInfo": "pointwise",
    "BinaryUfuncInfo": "pointwise",
    "ReductionOpInfo": "reduction",
    "ShapeFuncInfo": "view",
    "SpectralFuncInfo": "Fourier transform",
}


def kind_of(op: Any) -> str:
    """pointwise, reduction, view, ..."""
    if op.name in _NAMES:
        return _NAMES[op.name]
    for pattern, kind in _PATTERNS:
        if re.match(pattern, op.name):
            return kind
    return _CLASSES.get(type(op).__name__, "other")
