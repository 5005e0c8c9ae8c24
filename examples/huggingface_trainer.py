"""ELM in the Hugging Face `Trainer` through `compute_loss_func`: a small ViT on images of real digits.

pip install transformers accelerate
"""

import tempfile

import torch
from torch import nn
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import longtail
from longtail import ELM
from longtail.data import load
from longtail.evaluate import accuracy


class WithEmbeddings(nn.Module):
    """Any model whose output has `.logits`, as one that returns the embeddings too."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.wrapped = longtail.wrap(model)

    def forward(self, pixel_values: torch.Tensor) -> dict[str, torch.Tensor]:
        return self.wrapped(pixel_values)._asdict()


class Digits(torch.utils.data.Dataset):
    """8×8 digits as images of one channel."""

    def __init__(self, split: longtail.data.Split) -> None:
        self.x, self.y = split.inputs.view(-1, 1, 8, 8), split.labels

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"pixel_values": self.x[i], "labels": self.y[i]}


def main() -> None:
    torch.manual_seed(0)
    data = load("digits-lt")
    criterion = ELM(data.counts)

    def compute_loss(outputs: dict, labels: torch.Tensor, num_items_in_batch: object = None) -> torch.Tensor:
        return criterion((outputs["logits"], outputs["embeddings"]), labels)

    size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = ViTConfig(image_size=8, patch_size=2, num_channels=1, num_labels=data.num_classes, **size)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, num_train_epochs=100, per_device_train_batch_size=64, per_device_eval_batch_size=100,
            learning_rate=2e-3, save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True,
            label_names=["labels"], logging_strategy="no",
        )  # fmt: skip
        model = WithEmbeddings(ViTForImageClassification(config))
        trainer = Trainer(model, arguments, train_dataset=Digits(data.train), compute_loss_func=compute_loss)
        print(f"training loss {trainer.train().training_loss:.3f}")
        logits = torch.from_numpy(trainer.predict(Digits(data.test)).predictions[0])
    result = accuracy.summary(logits, data.test.labels, data.counts)
    print(f"balanced accuracy {result.balanced:.3f}")


if __name__ == "__main__":
    main()
