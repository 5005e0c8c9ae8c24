"""ELM in a training loop of your own: real digits, long-tailed, a few seconds on a CPU."""

import torch
from torch import nn

import longtail
from longtail import ELM
from longtail.data import load
from longtail.evaluate import accuracy

torch.manual_seed(0)
data = load("digits-lt")
x, y = data.train.inputs, data.train.labels

model = longtail.wrap(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 10)))
criterion = ELM(data.counts)
optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)

for epoch in range(30):
    for batch in torch.randperm(len(y)).split(64):
        loss, parts = criterion(model(x[batch]), y[batch], return_parts=True)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    if epoch % 10 == 9:
        print(f"epoch {epoch + 1}: loss {loss:.3f}, " + ", ".join(f"{k} {v:.3f}" for k, v in parts.items()))

with torch.no_grad():
    result = accuracy.summary(model(data.test.inputs).logits, data.test.labels, data.counts)
print(f"balanced accuracy {result.balanced:.3f}")
for group, (value, classes) in result.groups.items():
    print(f"  {group}: " + ("no classes" if value is None else f"{value:.3f} over {classes} classes"))
