import copy
import pickle
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import longtail
from longtail.errors import InputError
from longtail.models import CosineHead
from longtail.models.wrap import wrap


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


class Softmaxed(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        return self.fc(x).softmax(1)


class AuxiliaryLast(nn.Module):
    """Registers its output layer before another linear one."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 3)
        self.stem = nn.Linear(4, 6)

    def forward(self, x):
        return self.out(self.stem(x).relu())


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        return self.fc(x)


class Transformerish(nn.Module):
    def forward(self, x, scale=1.0):
        return SimpleNamespace(logits=self.fc(x * scale))

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)


def test_outputs_are_the_modules_own():
    inner = net()
    model = longtail.wrap(inner)
    x = torch.randn(5, 4)
    logits, embeddings = model(x)
    assert torch.equal(logits, inner(x))
    assert torch.equal(embeddings, inner[:2](x))
    assert model.head is inner[2]
    assert model.embedding_size == 8
    assert model.num_classes == 3
    assert torch.equal(model.embed(x), embeddings)
    assert wrap(model) is model


def test_gradients_reach_both():
    model = wrap(net())
    embeddings = model(torch.randn(5, 4)).embeddings
    embeddings.square().sum().backward()
    assert model.module[0].weight.grad.abs().sum() > 0
    assert model.module[2].weight.grad is None
    model(torch.randn(5, 4)).logits.sum().backward()
    assert model.module[2].weight.grad is not None


def test_nothing_of_a_batch_is_kept():
    model = wrap(net())
    model(torch.randn(5, 4))
    assert not any(isinstance(value, (tuple, torch.Tensor)) for value in vars(model).values())


@pytest.mark.parametrize("how", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
@pytest.mark.parametrize("called", [False, True])
def test_copies_are_independent(how, called):
    model = wrap(net())
    x = torch.randn(5, 4)
    if called:
        model(x)
    other = how(model)
    torch.testing.assert_close(other(x), model(x))
    with torch.no_grad():
        other.head.weight.add_(1)
        other.module[0].weight.add_(1)
    assert not torch.equal(other(x).embeddings, model(x).embeddings)
    assert torch.equal(other(x).embeddings, other.module[:2](x))


def test_state_dict_round_trip():
    a, b = wrap(net()), wrap(net())
    b.load_state_dict(a.state_dict())
    x = torch.randn(5, 4)
    torch.testing.assert_close(a(x), b(x))
    assert set(a.state_dict()) == {f"module.{k}" for k in net().state_dict()}


def test_head_named_or_given():
    x = torch.randn(2, 4)
    with pytest.raises(InputError, match=r"not that of its linear layer 'stem'"):
        wrap(AuxiliaryLast())(x)
    by_name = wrap(AuxiliaryLast(), head="out")
    assert by_name(x).embeddings.shape == (2, 6)
    inner = AuxiliaryLast()
    assert wrap(inner, head=inner.out).head is inner.out
    with pytest.raises(InputError, match="one of out, stem; got 'fc'"):
        wrap(AuxiliaryLast(), head="fc")
    with pytest.raises(InputError, match="not one of its modules"):
        wrap(AuxiliaryLast(), head=nn.Linear(2, 2))


@pytest.mark.parametrize("nested", [True, False])
def test_head_can_be_replaced(nested):
    model = wrap(
        nn.Sequential(nn.Sequential(nn.Linear(4, 8)), nn.Sequential(nn.Linear(8, 3))) if nested else nn.Linear(4, 3)
    )
    model.head = CosineHead(model.embedding_size, 5)
    logits, embeddings = model(torch.randn(2, 4))
    assert logits.shape == (2, 5)
    assert embeddings.shape == (2, model.embedding_size)
    assert isinstance(model.head, CosineHead)


def test_object_with_logits_and_keyword_arguments():
    model = wrap(Transformerish())
    x = torch.randn(2, 4)
    torch.testing.assert_close(model(x, scale=2.0).embeddings, 2 * x)


@pytest.mark.parametrize(
    ("module", "x", "message"),
    [
        (Softmaxed(), torch.randn(2, 4), "a softmax after it"),
        (Tokens(), torch.randn(2, 5, 4), r"sees inputs of shape \(2, 5, 4\), and the output is no single position"),
    ],
)
def test_models_that_cannot_be_wrapped_say_so_at_the_first_call(module, x, message):
    with pytest.raises(InputError, match=message):
        wrap(module)(x)


def test_models_that_cannot_be_wrapped_at_all():
    with pytest.raises(InputError, match="Conv2d has no linear layer"):
        wrap(nn.Conv2d(3, 4, 3))
    with pytest.raises(InputError, match=r"takes a torch\.nn\.Module, got int"):
        wrap(3)

    class Pair(Tokens):
        def forward(self, x):
            return self.fc(x), x

    with pytest.raises(InputError, match="returns tuple"):
        wrap(Pair())(torch.randn(2, 4))

    class Unused(Tokens):
        def forward(self, x):
            return x

    with pytest.raises(InputError, match="did not use its linear layer 'fc'"):
        wrap(Unused())(torch.randn(2, 4))


def test_compiled_graph_is_whole():
    model = wrap(net())
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    x = torch.randn(5, 4)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), model(x))


def test_distributed_data_parallel(tmp_path):
    import torch.distributed as dist

    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = wrap(net())
        parallel = nn.parallel.DistributedDataParallel(model)
        x = torch.randn(5, 4)
        logits, embeddings = parallel(x)
        (logits.sum() + embeddings.sum()).backward()
        assert model.module[0].weight.grad is not None
        assert torch.equal(embeddings, model.embed(x))
        del parallel  # one that outlives the group may hang
    finally:
        dist.destroy_process_group()


def test_a_change_in_place_after_the_head_is_noticed():
    net = wrap(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), nn.ReLU(inplace=True)))
    with pytest.raises(InputError, match="is not that of its linear layer"):
        net(torch.randn(5, 4))


class Pooled(nn.Module):
    """Pools after its head: the last of two summed positions is no position."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        return self.fc(x)[:, -2:].sum(1)


def test_a_sum_of_positions_is_no_embedding():
    with pytest.raises(InputError, match="is not that of its linear layer 'fc'"):
        wrap(Pooled())(torch.randn(2, 5, 4))


SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}


def text_models():
    """Transformers' own classes, small; the embedding each must have, from its own parts."""
    transformers = pytest.importorskip("transformers")
    same = {"vocab_size": 50, "num_labels": 3, "pad_token_id": 0}
    t = transformers
    gpt = t.GPT2Config(n_embd=32, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=2, **same)
    distil = t.DistilBertConfig(dim=32, n_layers=1, n_heads=2, hidden_dim=64, **same)
    return {
        "bert": (t.BertForSequenceClassification(t.BertConfig(**SMALL, **same)), "classifier"),
        "distilbert": (t.DistilBertForSequenceClassification(distil), "classifier"),
        "roberta": (
            t.RobertaForSequenceClassification(t.RobertaConfig(**SMALL, **same, max_position_embeddings=20)),
            "classifier.out_proj",
        ),
        "gpt2": (t.GPT2ForSequenceClassification(gpt), "score"),
        "llama": (t.LlamaForSequenceClassification(t.LlamaConfig(**SMALL, **same, num_key_value_heads=2)), "score"),
    }


@pytest.mark.parametrize("name", ["bert", "distilbert", "roberta", "gpt2", "llama"])
def test_text_classifiers(name):
    inner, head = text_models()[name]
    model = wrap(inner.eval())
    tokens = torch.randint(3, 50, (4, 7))
    tokens[1, 4:] = 0
    given = {"input_ids": tokens, "attention_mask": (tokens != 0).long()}
    for _ in range(2):  # the first call is verified, the second is not
        logits, embeddings = model(**given)
        assert model.head_name == head
        assert embeddings.shape == (4, 32)
        torch.testing.assert_close(logits, inner(**given).logits)
        torch.testing.assert_close(model.head(embeddings), logits)
    if name in ("gpt2", "llama"):  # the last token that is no padding
        states = inner.base_model(**given).last_hidden_state
        torch.testing.assert_close(embeddings, states[torch.arange(4), torch.tensor([6, 3, 6, 6])])
    embeddings.sum().backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in inner.base_model.parameters())
