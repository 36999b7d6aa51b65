"""torch_geometric: convolutions on a graph; sums over edges are scatters, which Litz fuses."""

import torch
from torch_geometric.nn import GATConv, GCNConv

torch.manual_seed(0)


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = GCNConv(16, 32), GATConv(32, 4, heads=2)

    def forward(self, x, edges):
        return self.second(self.first(x, edges).relu(), edges).log_softmax(-1)


model, x, edges = Network(), torch.randn(50, 16), torch.randint(50, (2, 200))
compiled = torch.compile(model, backend="litz")
assert torch.allclose(compiled(x, edges), model(x, edges), atol=1e-5)
compiled(x, edges).sum().backward()
assert all(p.grad is not None for p in model.parameters())
