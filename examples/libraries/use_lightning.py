"""lightning: compile the layers, and train as ever.

The module itself can be compiled where it does not call ``self.log``, which PyTorch 2.13 cannot
trace.
"""

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.SiLU(), torch.nn.Linear(32, 4)
        )
        self.losses = []

    def training_step(self, batch, _):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.layers(x), y)
        self.log("loss", loss)
        self.losses.append(loss.detach())
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)


data = TensorDataset(torch.randn(64, 16), torch.randint(4, (64,)))
module = Classifier()
module.layers = torch.compile(module.layers, backend="litz")
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
trainer = lightning.Trainer(max_epochs=8, accelerator="cpu", enable_model_summary=False, **quiet)
trainer.fit(module, DataLoader(data, batch_size=32))
assert module.losses[-1] < module.losses[0]
