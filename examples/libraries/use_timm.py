"""timm: any of its models."""

import timm
import torch

torch.manual_seed(0)
for name in ("resnet18", "vit_tiny_patch16_224", "convnext_atto", "efficientnet_b0"):
    model = timm.create_model(name, pretrained=False, num_classes=10).eval()
    compiled = torch.compile(model, backend="litz")
    x = torch.randn(2, 3, 224, 224)
    with torch.inference_mode():
        exact, eager = model.double()(x.double()), model.float()(x)
        error, allowed = (compiled(x) - exact).abs().max(), 2 * (eager - exact).abs().max()
    assert error <= allowed + 1e-6, (name, error, allowed)
