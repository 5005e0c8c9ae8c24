"""ELM in a Lightning module: real digits, long-tailed.

pip install lightning
"""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import longtail
from longtail import ELM, ClassCounts
from longtail.data import load
from longtail.evaluate import accuracy


class LongTailed(lightning.LightningModule):
    def __init__(self, network: nn.Module, counts: ClassCounts) -> None:
        super().__init__()
        self.model = longtail.wrap(network)
        self.counts, self.criterion = counts, ELM(counts)
        self.seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        x, y = batch
        loss, parts = self.criterion(self.model(x), y, return_parts=True)
        self.log_dict(parts, prog_bar=True)
        return loss

    def test_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        x, y = batch
        self.seen.append((self.model(x).logits, y))

    def on_test_epoch_end(self) -> None:
        logits, labels = (torch.cat(part) for part in zip(*self.seen))
        self.log("balanced", accuracy.summary(logits, labels, self.counts).balanced)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)


if __name__ == "__main__":
    lightning.seed_everything(0)
    data = load("digits-lt")
    train = DataLoader(TensorDataset(data.train.inputs, data.train.labels), batch_size=64, shuffle=True)
    test = DataLoader(TensorDataset(data.test.inputs, data.test.labels), batch_size=100)
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 10))
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(max_epochs=30, accelerator="cpu", devices=1, **quiet)
    module = LongTailed(network, data.counts)
    trainer.fit(module, train)
    (result,) = trainer.test(module, test, verbose=False)
    print(f"balanced accuracy {result['balanced']:.3f}")
