"""Why an operator is left to ATen, by its family: what ``explain`` and the documentation say."""

from __future__ import annotations

from typing import Final

NO_LOWERING: Final = "no lowering"
MATRIX_PRODUCT: Final = "a matrix product: ATen's libraries compute it"
_SPECIAL: Final = "a special function: ATen computes it"
_ALGEBRA: Final = "linear algebra: ATen's libraries compute it"
_FOURIER: Final = "a Fourier transform: ATen's libraries compute it"
_COMPLEX: Final = "complex numbers: ATen handles them"
_SORT: Final = "a sort or scan: ATen computes it"
_DATA: Final = "the size of its result depends on data"
_STORAGE: Final = "it reads memory around its argument, which only ATen knows"
_SPARSE: Final = "a sparse tensor: ATen handles it"

_PREFIXES: Final = (
    ("special_", _SPECIAL),
    ("linalg_", _ALGEBRA),
    ("_linalg_", _ALGEBRA),
    ("_fft_", _FOURIER),
    ("cholesky", _ALGEBRA),
    ("lu_", _ALGEBRA),
    ("_conj", _COMPLEX),
    ("view_as_", "a view of complex numbers in memory"),
    ("as_strided", _STORAGE),
    ("to_sparse", _SPARSE),
    ("_to_sparse", _SPARSE),
    ("sparse_", _SPARSE),
    ("_sparse", _SPARSE),
)
SIZED_BY_DATA: Final = frozenset({
    "_unique", "_unique2", "unique_consecutive", "unique_dim", "unique_dim_consecutive", "nonzero",
    "argwhere", "masked_select",
})  # fmt: skip
"""Operators of which no argument says how large their results are."""

_NAMES: Final = {
    **dict.fromkeys(SIZED_BY_DATA, _DATA),
    **dict.fromkeys(("polygamma", "igamma", "igammac", "ldexp"), _SPECIAL),
    **dict.fromkeys(
        ("geqrf", "ormqr", "triangular_solve", "_euclidean_dist", "_trilinear", "renorm"), _ALGEBRA
    ),
    **dict.fromkeys(("complex", "polar", "resolve_conj", "real", "imag"), _COMPLEX),
    **dict.fromkeys(
        (
            "cummax", "cummin", "_cummax_helper", "_cummin_helper", "logcumsumexp", "kthvalue",
            "median", "nanmedian", "mode", "histc", "bincount", "argsort",
            "histogram", "segment_reduce", "_logcumsumexp", "quantile",
        ),
        _SORT,
    ),
    "nonzero_static": _DATA,
}  # fmt: skip


def family_reason(name: str) -> str:
    """The reason for an ATen operator (``linalg_qr``) that has no lowering."""
    if name in _NAMES:
        return _NAMES[name]
    for prefix, reason in _PREFIXES:
        if name.startswith(prefix):
            return reason
    return NO_LOWERING
