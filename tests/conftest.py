"""What the environment says before any test imports: Triton decides at import whether kernels are
interpreted, and OpenMP how its threads wait."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
# Every compiled graph of a test checks what it hands to operators of ATen.
os.environ.setdefault("LITZ_CHECK_CALLS", "1")
# Threads of several workers share the cores: one that spins while it waits keeps another out.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
