"""What the environment says before any test imports: Triton decides at import whether kernels are
interpreted, and OpenMP how its threads wait."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
# Every compiled graph of a test checks what it hands to operators of ATen.
os.environ.setdefault("LITZ_CHECK_CALLS", "1")
# Several workers share the cores: a thread that waits by spinning keeps others from their work.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
