"""kernel k286b4d30effad960 (step 89) computes a wrong getitem_101: relative error 0.00162 over the whole tensor; rounding explains 0.00146

Run this file with Python to see it again: inputs.pt beside it holds the kernel's inputs.
"""

import sys
from pathlib import Path

import torch
from torch import device, inf, nan, tensor  # noqa: F401  (names that the graph may use)

import litz  # noqa: F401
from litz.verify.replay import replay


class Repro(torch.nn.Module):
    def forward(self, primals_141, primals_142, primals_143, primals_144, convolution_18):
        # No stacktrace found for following nodes
        _native_batch_norm_legit_functional_17 = torch.ops.aten._native_batch_norm_legit_functional.default(convolution_18, primals_143, primals_144, primals_141, primals_142, True, 0.1, 1e-05);  convolution_18 = primals_143 = primals_144 = primals_142 = None
        getitem_101 = _native_batch_norm_legit_functional_17[1]
        getitem_103 = _native_batch_norm_legit_functional_17[3];  _native_batch_norm_legit_functional_17 = None
        copy__52 = torch.ops.aten.copy_.default(primals_141, getitem_103);  primals_141 = None
        return (getitem_101, getitem_103, copy__52)

OPTIONS = {'verify': True}

if __name__ == "__main__":
    saved = torch.load(Path(__file__).with_name("inputs.pt"), weights_only=True)
    sys.exit(replay(Repro(), saved["inputs"], OPTIONS))
