"""Thousands of small cases beside eager and the peer; ``python -m benchmarks.sweep``."""
