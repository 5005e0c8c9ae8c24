"""The class memory: what it holds, what it recalls, and that it is the same everywhere and after a restart."""

import copy
import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from longtail import ELM, ClassCounts, Features
from longtail.errors import InputError
from longtail.losses import Objective, Pull, RelativePull
from longtail.losses.memory import ClassMemory

COUNTS = ClassCounts([12, 5, 3, 1, 0])


def content(memory):
    """{class: {id: (embedding as a list, step)}}."""
    held = {}
    for slot, label in enumerate(memory.classes.tolist()):
        if memory.steps[slot] >= 0:
            entry = (memory.embeddings[slot].tolist(), int(memory.steps[slot]))
            assert held.setdefault(label, {}).setdefault(int(memory.ids[slot]), entry) is entry
    return held


class Naive:
    """The same memory with lists and loops: per class a list of [id, embedding, step] in slots."""

    def __init__(self, counts, capacity, below=None):
        n = [c if below is None or c < below else 0 for c in counts.n.tolist()]
        self.slots = [[None] * min(c, capacity) for c in n]
        self.step = 0

    def push(self, x, labels, ids):
        ids, labels = ids.tolist(), labels.tolist()
        rows = [i for i in range(len(ids)) if ids[i] not in ids[i + 1 :]]
        for c, slots in enumerate(self.slots):
            own = [i for i in rows if labels[i] == c and slots]
            known = {s[0]: j for j, s in enumerate(slots) if s}
            for i in own:
                if ids[i] in known:
                    slots[known[ids[i]]] = (ids[i], x[i].tolist(), self.step)
            new = [i for i in own if ids[i] not in known]
            room = len(slots) - (len(own) - len(new))
            for i in new[max(len(new) - room, 0) :]:
                old = [j for j, s in enumerate(slots) if s is None or s[2] < self.step]
                slots[min(old, key=lambda j: (slots[j][2] if slots[j] else -1, j))] = (ids[i], x[i].tolist(), self.step)
        self.step += 1

    def content(self):
        held = {c: {s[0]: (s[1], s[2]) for s in slots if s} for c, slots in enumerate(self.slots)}
        return {c: s for c, s in held.items() if s}


@pytest.mark.parametrize(("capacity", "below"), [(1, None), (3, None), (16, None), (4, 6)])
def test_holds_what_the_naive_memory_holds(capacity, below):
    memory, naive = ClassMemory(COUNTS, capacity=capacity, below=below), Naive(COUNTS, capacity, below)
    label_of = torch.repeat_interleave(torch.arange(5), COUNTS.n)
    g = torch.Generator().manual_seed(capacity)
    for _ in range(40):
        ids = torch.randint(0, COUNTS.total, (9,), generator=g)  # with repeats: two views of a sample
        x = torch.randn(9, 2, generator=g)
        memory.push(x, label_of[ids], ids)
        naive.push(x, label_of[ids], ids)
        assert content(memory) == naive.content()
    assert memory.held().tolist() == [len(naive.content().get(c, {})) for c in range(5)]
    n = COUNTS.n if below is None else COUNTS.n * (COUNTS.n < below)
    assert memory.slots.tolist() == n.clamp(max=capacity).tolist()


def test_recalls_only_classes_of_the_batch_and_no_sample_of_it():
    memory = ClassMemory(COUNTS)
    memory.push(torch.arange(6.0)[:, None], torch.tensor([0, 0, 1, 1, 2, 3]), torch.arange(6))
    keys = memory.recall(torch.tensor([0, 1, 4]), torch.tensor([1, 9, 10]))
    assert keys.ids.tolist() == [0, 2, 3]
    assert keys.labels.tolist() == [0, 1, 1]
    assert keys.embeddings[:, 0].tolist() == [0.0, 2.0, 3.0]
    assert ClassMemory(COUNTS).recall(torch.tensor([0]), torch.tensor([0])) is None


def test_what_is_not_finite_is_not_remembered():
    memory = ClassMemory(COUNTS)
    x = torch.tensor([[1.0, 2.0], [float("nan"), 0.0], [float("inf"), float("-inf")], [5.0, 6.0]])
    memory.push(x.half(), torch.tensor([0, 0, 1, 1]), torch.arange(4))
    assert content(memory) == {0: {0: ([1.0, 2.0], 0)}, 1: {3: ([5.0, 6.0], 0)}}
    memory.push(torch.full((1, 2), float("nan")), torch.tensor([0]), torch.tensor([0]))
    assert memory.held().tolist() == [1, 1, 0, 0, 0]


def test_age_limit_and_warm_up():
    memory = ClassMemory(COUNTS, max_age=2, warmup=2)
    recalled = []
    for step in range(4):
        keys = memory.recall(torch.tensor([0]), torch.tensor([100]))
        recalled.append([] if keys is None else keys.ids.tolist())
        memory.push(torch.zeros(1, 2), torch.tensor([0]), torch.tensor([step]))
    assert recalled == [[], [], [0, 1], [1, 2]]


@pytest.mark.parametrize("kind", [Pull, RelativePull])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_memory_of_the_whole_set_gives_the_full_sum(kind, scaled):
    g = torch.Generator().manual_seed(0)
    labels = torch.repeat_interleave(torch.arange(5), COUNTS.n)
    x = 0.5 * torch.randn(len(labels), 4, generator=g, dtype=torch.float64)
    ids = torch.arange(len(labels)) + 70
    term = kind(COUNTS, scaled=scaled)
    objective = Objective((1.0, term), memory=ClassMemory(COUNTS, capacity=12, dtype=torch.float64))
    for _ in range(2):  # an epoch fills the memory; in the second everything is there
        for rows in torch.randperm(len(x), generator=g).split(7):
            e = x[rows].clone().requires_grad_()
            loss = objective((None, e), labels[rows], ids=ids[rows])
    if kind is Pull:
        full = Pull(COUNTS)(x, labels)
    else:  # the variance is the batch's, in both
        full = kind(COUNTS)(e.detach(), labels[rows], keys=Features(x, labels, ids), ids=ids[rows])
        full = torch.zeros(len(x), dtype=torch.float64).index_copy(0, rows, full)
    torch.testing.assert_close(loss, full[rows].mean(), rtol=1e-12, atol=0)
    # and the batch's own positives, but not the remembered ones, take part in the gradient
    loss.backward()
    assert e.grad.abs().sum() > 0
    assert not objective.memory.embeddings.requires_grad


def test_backward_is_right_though_the_memory_is_written_before_it():
    objective = Objective((1.0, Pull(COUNTS, alpha=0.0)), memory=ClassMemory(COUNTS, capacity=1))
    objective((None, torch.tensor([[3.0, 0.0]])), torch.tensor([0]), ids=torch.tensor([0]))
    x = torch.tensor([[1.0, 0.0]], requires_grad=True)
    objective((None, x), torch.tensor([0]), ids=torch.tensor([1])).backward()  # overwrites the only slot
    # d log(1 + exp d²) = sigmoid(4)·2(x − z)
    torch.testing.assert_close(x.grad, torch.tensor([[torch.sigmoid(torch.tensor(4.0)).item() * 2 * -2.0, 0.0]]))


def test_evaluation_neither_reads_nor_writes():
    criterion = ELM(COUNTS, memory=2)
    outputs, labels, ids = (torch.zeros(2, 5), torch.randn(2, 3)), torch.tensor([0, 1]), torch.tensor([0, 1])
    criterion(outputs, labels, ids=ids)
    before = copy.deepcopy(criterion.state_dict())
    criterion.eval()
    _, parts = criterion(outputs, labels, return_parts=True)  # and asks for no ids
    assert parts["pull"] == 0
    assert all(torch.equal(v, before[k]) for k, v in criterion.state_dict().items())


def _step(criterion, seed):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randperm(COUNTS.total, generator=g)[:8]
    labels = torch.repeat_interleave(torch.arange(5), COUNTS.n)[ids]
    outputs = (torch.randn(8, 5, generator=g), torch.randn(8, 3, generator=g))
    return criterion(outputs, labels, ids=ids)


def _same(a, b):
    assert a.keys() == b.keys()
    assert all(torch.equal(a[k], b[k]) for k in a)


def test_a_resumed_run_is_bit_identical(tmp_path):
    straight, interrupted = ELM(COUNTS, memory=3), ELM(COUNTS, memory=3)
    for seed in range(5):
        _step(straight, seed)
        _step(interrupted, seed)
    torch.save(interrupted.state_dict(), tmp_path / "state.pt")
    resumed = ELM(COUNTS, memory=3)  # knows no size yet
    resumed.load_state_dict(torch.load(tmp_path / "state.pt"))
    for seed in range(5, 9):
        assert torch.equal(_step(straight, seed), _step(resumed, seed))
        _same(straight.state_dict(), resumed.state_dict())
    resumed.load_state_dict(ELM(COUNTS, memory=3).state_dict())  # back to before the first step
    assert resumed.memory.recall(torch.tensor([0]), torch.tensor([0])) is None


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: ClassMemory(COUNTS, capacity=0), "capacity must be a whole number of at least 1, got 0"),
        (lambda: ClassMemory(COUNTS, capacity=1.5), "capacity"),
        (lambda: ClassMemory(COUNTS, size=0), "size"),
        (lambda: ClassMemory(COUNTS, max_age=0), "max_age"),
        (lambda: ClassMemory(COUNTS, warmup=-1), "warmup"),
        (lambda: ClassMemory(COUNTS, below=0), "below"),
        (lambda: ClassMemory(COUNTS, dtype=torch.int64), "floating-point"),
        (lambda: ClassMemory(COUNTS).push(torch.zeros(2, 3), torch.tensor([0, 1]), None), "pass ids="),
        (lambda: ClassMemory(COUNTS).push(torch.zeros(2, 3), torch.tensor([0]), torch.tensor([0])), "takes embeddings"),
        (lambda: ClassMemory(COUNTS, 4).push(torch.zeros(1, 3), torch.tensor([0]), torch.tensor([0])), "size 4"),
    ],
)
def test_mistakes_are_named(make, match):
    with pytest.raises(InputError, match=match):
        make()


def _rank(rank, folder):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.set_num_threads(1)
    criterion, alone = ELM(COUNTS, memory=3, lam=0.5, distributed=True), ELM(COUNTS, memory=3, lam=0.5)
    label_of = torch.repeat_interleave(torch.arange(5), COUNTS.n)
    for step in range(4):
        g = torch.Generator().manual_seed(step)
        ids = torch.randperm(COUNTS.total, generator=g)[:8]
        logits, x = torch.randn(8, 5, generator=g), torch.randn(8, 3, generator=g)
        mine = slice(4 * rank, 4 * rank + 4)
        alive = criterion.alive(label_of[ids[mine]], ids[mine])
        assert torch.equal(alive, alone.alive(label_of[ids], ids)[mine])
        part = x[mine].clone().requires_grad_()
        loss = criterion((logits[mine], part), label_of[ids[mine]], ids=ids[mine])
        loss.backward()
        whole = x.clone().requires_grad_()
        expected = alone((logits, whole), label_of[ids], ids=ids)
        expected.backward()
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(part.grad / 2, whole.grad[mine])  # DDP's averaging halves what a rank holds
        _same(criterion.state_dict(), alone.state_dict())
    dist.destroy_process_group()


def test_two_ranks_hold_the_memory_of_one_process(tmp_path):
    mp.spawn(_rank, (str(tmp_path),), nprocs=2)


def test_the_tail_of_cifar100_lt_is_alive_after_an_epoch():
    counts = ClassCounts([int(500 * 0.01 ** (i / 99)) for i in range(100)])
    label_of = torch.repeat_interleave(torch.arange(100), counts.n)
    objective = Objective((1.0, Pull(counts)), memory=ClassMemory(counts))
    g, tail = torch.Generator().manual_seed(0), counts.groups()["tail"]
    shares = []
    for _ in range(2):
        alive, seen = 0, 0
        for ids in torch.randperm(counts.total, generator=g).split(128):
            found, ours = objective.alive(label_of[ids], ids), torch.isin(label_of[ids], tail)
            alive, seen = alive + int(found[ours].sum()), seen + int(ours.sum())
            objective((None, torch.zeros(len(ids), 2)), label_of[ids], ids=ids)
        shares.append(alive / seen)
    assert shares[1] > 0.95
    assert objective.memory.held().tolist() == counts.n.clamp(max=16).tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_what_the_memory_s_own_dtype_cannot_hold_is_not_remembered(dtype):
    memory = ClassMemory(COUNTS, dtype=dtype)
    x = torch.tensor([[1e5, 0.0], [1.0, 2.0]])
    memory.push(x, torch.tensor([0, 0]), torch.tensor([1, 2]))
    assert memory.embeddings.isfinite().all()
    assert memory.held()[0] == (1 if dtype == torch.float16 else 2)
    criterion = ELM(COUNTS, memory=memory)
    assert criterion((torch.zeros(1, 5), x[1:]), torch.tensor([0]), ids=torch.tensor([3])).isfinite()


def test_casting_the_module_leaves_the_memory_alone():
    for cast in (ELM.half, ELM.double, ELM.bfloat16, lambda c: c.to(torch.float16)):
        plain = ELM(COUNTS, memory=3)
        _step(plain, 0)
        changed = cast(copy.deepcopy(plain))
        _same(plain.state_dict(), changed.state_dict())
        assert torch.equal(_step(plain, 1), _step(changed, 1))
    assert ELM(COUNTS, memory=ClassMemory(COUNTS, 2)).to("meta").half().memory.embeddings.device.type == "meta"


def test_a_limit_that_no_class_is_below_leaves_nothing_to_remember():
    memory = ClassMemory(COUNTS, 2, below=1)
    memory.push(torch.ones(2, 2), torch.tensor([0, 1]), torch.tensor([1, 2]))
    assert memory.held().sum() == 0
    assert len(memory.recall(torch.tensor([0, 1]), torch.tensor([3, 4])).labels) == 0
