"""Batch norms folded into convolutions: the same embeddings, and only where it is the same."""

import torch
from torch import Tensor, nn

from longtail.models import pretrained
from longtail.models.pretrained import folded


def norms(network: nn.Module) -> int:
    return sum(isinstance(m, nn.BatchNorm2d) for m in network.modules())


class Small(nn.Module):
    """Convolution and batch norm, with statistics as after training; ``twice`` uses the convolution's output again."""

    def __init__(self, twice: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm, self.twice = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), twice
        for value in (self.norm.weight, self.norm.bias, self.norm.running_mean, self.norm.running_var):
            nn.init.uniform_(value, 0.5, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return (self.norm(y) + (y if self.twice else 0)).mean((2, 3))


def test_the_pretrained_network_says_the_same_without_its_norms():
    network = pretrained.load("efficientnet-lite0").network
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    quick = folded(network, images)
    assert (norms(network), norms(quick)) == (49, 0)
    other = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        torch.testing.assert_close(quick(other), network(other), rtol=1e-3, atol=1e-4)


def test_a_norm_is_folded_and_the_network_left_as_it_is():
    network, images = Small().eval(), torch.randn(4, 3, 9, 9)
    before = {k: v.clone() for k, v in network.state_dict().items()}
    quick = folded(network, images)
    assert norms(quick) == 0
    torch.testing.assert_close(quick(images), network(images))
    assert all(torch.equal(before[k], v) for k, v in network.state_dict().items())


def test_what_cannot_be_folded_is_the_network_itself():
    images = torch.randn(4, 3, 9, 9)
    twice = Small(twice=True).eval()
    assert folded(twice, images) is twice, "a convolution whose output is used elsewhere too"
    renewing = Small().train()
    assert folded(renewing, images) is renewing, "a norm with the statistics of its batch"
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()).eval()
    assert folded(plain, images) is plain
