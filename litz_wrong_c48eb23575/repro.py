"""kernel k4f9baa7c45358496 (step 35) computes a wrong sum_10: relative error 1.94e-06 over the whole tensor; rounding explains 1.72e-06

Run this file with Python to see it again: inputs.pt beside it holds the kernel's inputs.
"""

import sys
from pathlib import Path

import torch
from torch import device, inf, nan, tensor  # noqa: F401  (names that the graph may use)

import litz  # noqa: F401
from litz.verify.replay import replay


class Repro(torch.nn.Module):
    def forward(self, view_42):
        # No stacktrace found for following nodes
        sum_10 = torch.ops.aten.sum.dim_IntList(view_42, [0], True);  view_42 = None
        view_43 = torch.ops.aten.view.default(sum_10, [16])
        return (sum_10, view_43)

OPTIONS = {'verify': True}

if __name__ == "__main__":
    saved = torch.load(Path(__file__).with_name("inputs.pt"), weights_only=True)
    sys.exit(replay(Repro(), saved["inputs"], OPTIONS))
