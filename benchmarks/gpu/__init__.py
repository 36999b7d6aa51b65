"""Litz beside eager and the peer on a GPU; ``python -m benchmarks.gpu``."""
