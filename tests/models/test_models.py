import copy

import pytest
import torch
from torch import nn

from longtail import models
from longtail.errors import InputError
from longtail.models import CosineHead, LinearHead, build, load_weights, parameter_count

SMALL = ["linear", "mlp", "mlp-moons", "resnet20", "resnet32", "resnet18", "resnet50"]


def shape_for(name):
    return (3, 32, 32) if name.startswith("resnet") else (5,)


@pytest.mark.parametrize("head", ["linear", "cosine"])
@pytest.mark.parametrize("name", SMALL)
def test_contract_of_every_model(name, head):
    model = build(name, 7, shape_for(name), head=head)
    x = torch.randn(3, *shape_for(name))
    logits, embeddings = model(x)
    assert logits.shape == (3, 7)
    assert embeddings.shape == (3, model.embedding_size)
    assert isinstance(model.head, CosineHead if head == "cosine" else LinearHead)
    assert model.head.weight.shape == (7, model.embedding_size)
    assert (model.head.bias is None) == (head == "cosine")
    assert model.num_classes == 7
    model.eval()
    out = model(x)
    torch.testing.assert_close(model.embed(x), out.embeddings)
    torch.testing.assert_close(model.head(out.embeddings), out.logits)


def test_parameter_counts_are_those_of_he_et_al():
    assert parameter_count(build("resnet32", 10, (3, 32, 32))) == 464_154
    assert parameter_count(build("resnet32", 100, (3, 32, 32))) == 470_004
    assert parameter_count(build("resnet20", 10, (3, 32, 32))) == 269_722
    # Published for the ImageNet networks with 1,000 classes.
    assert parameter_count(build("resnet18", 1000, (3, 224, 224))) == 11_689_512
    assert parameter_count(build("resnet50", 1000, (3, 224, 224))) == 25_557_032


def test_cifar_shortcuts_have_no_parameters_and_subsample():
    model = build("resnet20", 10, (3, 32, 32))
    assert not any("downsample" in key for key in model.state_dict())
    block = model.layer2[0]
    x = torch.randn(2, 16, 6, 6)
    y = block.shortcut(x)
    assert y.shape == (2, 32, 3, 3)
    torch.testing.assert_close(y[:, 8:24], x[:, :, ::2, ::2])
    assert y[:, :8].abs().sum() + y[:, 24:].abs().sum() == 0


def test_channels_last_survives_the_shortcut():
    x = torch.randn(2, 16, 8, 8).contiguous(memory_format=torch.channels_last)
    y = build("resnet20", 10, (3, 32, 32)).layer2[0].shortcut(x)
    assert y.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", ["mlp", "resnet20"])
def test_same_seed_same_weights(name):
    states = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        states.append(build(name, 4, shape_for(name)).state_dict())
    assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])
    assert not all(torch.equal(states[0][k], states[2][k]) for k in states[0])


def test_he_initialisation():
    torch.manual_seed(0)
    model = build("resnet50", 10, (3, 64, 64))
    weight = model.layer4[0].conv2.weight
    assert weight.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)
    assert torch.equal(model.head.bias, torch.zeros(10))


def test_torchvision_names():
    keys = set(build("resnet50", 10, (3, 64, 64)).state_dict())
    for key in (
        "conv1.weight", "bn1.running_mean", "layer1.0.conv3.weight", "layer1.0.downsample.0.weight",
        "layer1.0.downsample.1.num_batches_tracked", "layer4.2.bn3.bias", "fc.weight", "fc.bias",
    ):  # fmt: skip
        assert key in keys
    assert not any(key.startswith("head") for key in keys)
    assert "layer1.0.downsample.0.weight" not in build("resnet18", 10, (3, 64, 64)).state_dict()


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_weight_files_load_and_another_head_is_skipped(tmp_path, suffix):
    from safetensors.torch import save_file

    source = build("resnet18", 1000, (3, 64, 64))
    path = tmp_path / f"weights{suffix}"
    state = {k: v for k, v in source.state_dict().items() if not k.endswith("num_batches_tracked")}
    if suffix == ".pth":
        torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}}, path)
    else:
        save_file(state, path)

    target = build("resnet18", 5, (3, 64, 64))
    before = target.head.weight.clone()
    said = load_weights(target, path)
    assert len(said) == 2
    assert "fc.weight of shape (1000, 512) was skipped" in " ".join(said)
    assert torch.equal(target.head.weight, before)
    assert torch.equal(target.layer4[1].conv2.weight, source.layer4[1].conv2.weight)

    same = build("resnet18", 1000, (3, 64, 64))
    assert load_weights(same, path) == []
    assert torch.equal(same.head.weight, source.head.weight)


def test_weight_files_that_do_not_fit(tmp_path):
    model = build("resnet20", 5, (3, 32, 32))
    with pytest.raises(InputError, match="there is no weight file"):
        load_weights(model, tmp_path / "no.pth")
    path = tmp_path / "other.pth"
    torch.save(build("mlp", 5, (4,)).state_dict(), path)
    with pytest.raises(InputError, match=r"does not fit CifarResNet: it lacks conv1.weight"):
        load_weights(model, path)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match="cannot be read as weights"):
        load_weights(model, path)
    broken = tmp_path / "x.safetensors"
    broken.write_bytes(b"\x10")
    with pytest.raises(InputError, match="safetensors"):
        load_weights(model, broken)
    torch.save([1, 2], path)
    with pytest.raises(InputError, match="holds no state dict"):
        load_weights(model, path)


class Evil:
    def __reduce__(self):
        return print, ("code ran",)


def test_no_code_of_a_weight_file_runs(tmp_path, capsys):
    path = tmp_path / "evil.pth"
    torch.save({"a": Evil()}, path)
    with pytest.raises(InputError):
        load_weights(build("mlp", 2, (2,)), path)
    assert "code ran" not in capsys.readouterr().out


def test_head_can_be_replaced_under_its_own_name():
    model = build("resnet18", 5, (3, 64, 64))
    model.head = CosineHead(512, 5)
    assert isinstance(model.fc, CosineHead)
    assert model.head is model.fc
    assert copy.deepcopy(model).head is not model.head


def test_cosine_head():
    head = CosineHead(3, 4).double()
    z = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    expected = torch.nn.functional.cosine_similarity(z[:, None], head.weight[None], dim=2)
    torch.testing.assert_close(head(z), expected)
    torch.testing.assert_close(head(10 * z), expected)
    scaled = CosineHead(3, 4, scale=16.0).double()
    scaled.load_state_dict(head.state_dict())
    torch.testing.assert_close(scaled(z), 16 * expected)
    assert torch.autograd.gradcheck(head, (z,))

    zero = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    head(zero).sum().backward()
    assert zero.grad.abs().max() < 10
    assert head.weight.grad.isfinite().all()
    assert head(zero).abs().sum() == 0


def test_cosine_head_keeps_float32_under_autocast():
    head = CosineHead(8, 4)
    z = torch.randn(5, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = head(z)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, head(z))


def test_mlp_moons_is_the_papers():
    model = build("mlp-moons", 2, (2,))
    sizes = [(m.in_features, m.out_features) for m in model.modules() if isinstance(m, nn.Linear)]
    assert sizes == [(2, 16), (16, 8), (8, 2), (2, 2)]
    assert (model.embed(torch.randn(50, 2)) >= 0).all()


def test_skip_puts_the_input_beside_the_hidden_layer():
    model = build("mlp", 3, (4,), hidden=(5,), skip=True)
    x = torch.randn(2, 4)
    assert model.embedding_size == 9
    assert torch.equal(model.embed(x)[:, 5:], x)


def test_linear_embeds_its_input():
    x = torch.randn(3, 2, 4)
    assert torch.equal(build("linear", 5, (2, 4)).embed(x), x.flatten(1))


def test_mistakes_are_named():
    with pytest.raises(InputError, match="did you mean 'resnet34'"):
        build("resnet23", 10, (3, 32, 32))
    with pytest.raises(InputError, match="unknown head 'cos'"):
        build("mlp", 10, (4,), head="cos")
    with pytest.raises(InputError, match=r"takes images .* shape \(64,\)"):
        build("resnet32", 10, (64,))
    with pytest.raises(InputError, match="num_classes"):
        build("mlp", 0, (4,))
    with pytest.raises(InputError, match="option of model mlp 'depth'"):
        build("mlp", 2, (4,), depth=3)
    with pytest.raises(InputError, match="hidden size"):
        build("mlp", 2, (4,), hidden=(0,))


FACTORY = """
from torch import nn
def net(num_classes, width=8):
    return nn.Sequential(nn.Flatten(), nn.Linear(12, width), nn.ReLU(), nn.Linear(width, num_classes))
def fixed():
    return nn.Linear(12, 3)
def needy(num_classes, depth):
    return nn.Linear(12, num_classes)
def number(num_classes):
    return num_classes
word = "x"
def broken(num_classes):
    raise ValueError("out of paint")
def other_shape(num_classes):
    return nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, num_classes))
"""


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    (tmp_path / "their_nets.py").write_text(FACTORY)
    (tmp_path / "their_bug.py").write_text("undefined")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("user_module")
def test_factory_of_the_user():
    model = build("their_nets:net", 4, (3, 2, 2), width=6)
    logits, embeddings = model(torch.randn(2, 3, 2, 2))
    assert logits.shape == (2, 4)
    assert embeddings.shape == (2, 6)
    cosine = build("their_nets:net", 4, (3, 2, 2), head="cosine")
    assert cosine(torch.randn(2, 3, 2, 2)).logits.abs().max() <= 1
    assert isinstance(cosine.head, CosineHead)


@pytest.mark.usefixtures("user_module")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("their_nets:fixed", "has 3 outputs, but the data has 4 classes"),
        ("their_nets:needy", "cannot be called with num_classes: .*depth"),
        ("their_nets:number", "must return a torch.nn.Module, got int"),
        ("their_nets:word", "no callable 'word'"),
        ("their_nets:", "no callable ''"),
        ("no_such_module:net", "module 'no_such_module' cannot be imported"),
        (":net", "cannot be imported"),
        (".nets:net", "cannot be imported"),
        ("their_bug:net", "module 'their_bug' cannot be imported .NameError: name 'undefined' is not defined"),
        ("their_nets:broken", "failed: ValueError: out of paint"),
        ("their_nets:other_shape", r"cannot take inputs of shape \(12,\): RuntimeError: mat1 and mat2"),
    ],
)
def test_factory_mistakes(name, message):
    with pytest.raises(InputError, match=message):
        build(name, 4, (12,))


def test_names_build():
    assert {"resnet44", "resnet56", "resnet34", "resnet101"} <= set(models.names())
