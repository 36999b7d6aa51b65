"""Triton decides at import whether kernels are interpreted: before any test imports it."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
