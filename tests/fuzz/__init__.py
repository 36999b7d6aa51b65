"""Random programs, compiled and compared with eager: ``python -m tests.fuzz --help``."""
