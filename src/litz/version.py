"""Litz's version, for rooms that do not import the package's public names."""

__version__ = "0.1.0"
