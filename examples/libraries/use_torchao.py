"""torchao: weights of 8 bits; their subclass of Tensor is compiled with the model."""

import torch
from torchao.quantization import Int8WeightOnlyConfig, quantize_

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 8))
quantize_(model.eval(), Int8WeightOnlyConfig())
compiled = torch.compile(model, backend="litz")
x = torch.randn(16, 64)
with torch.inference_mode():
    assert torch.allclose(compiled(x), model(x), atol=1e-5), (compiled(x) - model(x)).abs().max()
