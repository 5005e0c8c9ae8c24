"""ELM in the Hugging Face `Trainer`: which package a docstring is from, by a small BERT trained from scratch.

The text is real and long-tailed by nature: the docstrings of packages that are installed with longtail.

pip install transformers accelerate datasets
"""

import ast
import importlib.util
import tempfile
from collections import Counter
from pathlib import Path

import torch
from datasets import ClassLabel, Dataset
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import longtail
from longtail import ELM, ClassCounts
from longtail.evaluate import accuracy

PACKAGES = ("scipy", "matplotlib", "sklearn", "rich", "jinja2")
WORDS, LENGTH = 4000, 32


def docstrings(package: str, files: int = 250) -> list[str]:
    """The first paragraphs of a package's docstrings, without its own name."""
    found = []
    for path in sorted(Path(importlib.util.find_spec(package).origin).parent.rglob("*.py"))[:files]:
        nodes = (n for n in ast.walk(ast.parse(path.read_bytes())) if isinstance(n, (ast.FunctionDef, ast.ClassDef)))
        found += [text.split("\n\n")[0].lower().replace(package, "") for text in map(ast.get_docstring, nodes) if text]
    return sorted({text for text in found if len(text.split()) > 4})


def data() -> tuple[Dataset, Dataset]:
    """Training data as the packages have it, and 40 docstrings of each to test."""
    rows = {"train": [], "test": []}
    for label, package in enumerate(PACKAGES):
        texts = docstrings(package)
        order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(0)).tolist()
        for i, at in enumerate(order[:1200]):
            rows["test" if i < 40 else "train"].append({"text": texts[at], "label": label})
    words = Counter(word for row in rows["train"] for word in row["text"].split())
    place = {word: i + 2 for i, (word, _) in enumerate(words.most_common(WORDS - 2))}

    def encode(row: dict) -> dict:
        ids = [place.get(word, 1) for word in row["text"].split()][:LENGTH]
        pad = LENGTH - len(ids)
        return {"input_ids": ids + [0] * pad, "attention_mask": [1] * len(ids) + [0] * pad}

    made = (Dataset.from_list(rows[part]).map(encode, remove_columns="text") for part in ("train", "test"))
    train, test = (split.cast_column("label", ClassLabel(names=list(PACKAGES))) for split in made)
    return train, test


class WithEmbeddings(nn.Module):
    """Any text classifier, as one that returns the embeddings too."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.wrapped = longtail.wrap(model)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
        return self.wrapped(input_ids=input_ids, attention_mask=attention_mask)._asdict()


def main() -> None:
    torch.manual_seed(0)
    train, test = data()
    counts = ClassCounts.from_dataset(train)
    print(dict(zip(PACKAGES, counts.n.tolist())))
    criterion = ELM(counts)

    def compute_loss(outputs: dict, labels: torch.Tensor, num_items_in_batch: object = None) -> torch.Tensor:
        return criterion((outputs["logits"], outputs["embeddings"]), labels)

    size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(vocab_size=WORDS, num_labels=len(PACKAGES), max_position_embeddings=LENGTH, **size)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, num_train_epochs=6, per_device_train_batch_size=64, per_device_eval_batch_size=100,
            learning_rate=2e-3, save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True,
            label_names=["labels"], logging_strategy="no",
        )  # fmt: skip
        model = WithEmbeddings(BertForSequenceClassification(config))
        trainer = Trainer(
            model, arguments, train_dataset=train.rename_column("label", "labels"), compute_loss_func=compute_loss
        )
        print(f"training loss {trainer.train().training_loss:.3f}")
        logits = torch.from_numpy(trainer.predict(test.rename_column("label", "labels")).predictions[0])
    result = accuracy.summary(logits, torch.tensor(test["label"][:]), counts)
    print(f"balanced accuracy {result.balanced:.3f}")


if __name__ == "__main__":
    main()
