"""Litz beside eager and beside the peer; ``python -m benchmarks.cpu --help``."""
