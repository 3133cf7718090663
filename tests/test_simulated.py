"The simulated accelerator refuses what a GPU refuses, counts what makes a GPU's host wait, and computes the same."
import copy
import io

import numpy as np
import pytest
import torch
from accelerate.state import PartialState
from simulated import NAME, Accelerator
from torch import nn


@pytest.fixture
def sim():
    with Accelerator() as sim: yield sim


def kinds(sim)->list[str]: # of the waits so far
    return sorted(wait.kind for wait in sim.waits.elements())


REFUSED = {
    "a sum with the CPU": lambda x, cpu: x + cpu,
    "a sum with the device": lambda x, cpu: cpu.add_(x),
    "a product": lambda x, cpu: x @ cpu,
    "a number of the device in CPU arithmetic": lambda x, cpu: cpu*x.sum(),
    "a stack with a CPU number": lambda x, cpu: torch.stack([x.sum(), cpu.sum()]),
    "indices of the device into the CPU": lambda x, cpu: cpu[torch.zeros(1, dtype=torch.long, device=x.device)],
    "CPU values put into the device": lambda x, cpu: x.index_put((torch.tensor([0]),), cpu[0]),
    "NumPy": lambda x, cpu: x.numpy(),
    "NumPy, behind a function's back": lambda x, cpu: np.asarray(x),
    "a generator of the CPU": lambda x, cpu: torch.randn(3, device=x.device, generator=torch.Generator()),
    "a layer that was not moved": lambda x, cpu: nn.Linear(3, 2)(x),
}
ALLOWED = {
    "a CPU number": lambda x, cpu: x*torch.tensor(2.),
    "indices of the CPU": lambda x, cpu: x[torch.tensor([0])],
    "a CPU number put into the device": lambda x, cpu: x.masked_fill(x > 0, torch.tensor(1.)),
    "a copy from the CPU": lambda x, cpu: x.copy_(cpu),
    "a copy to the CPU": lambda x, cpu: cpu.copy_(x),
    "data made on the device": lambda x, cpu: x + torch.tensor([1., 2., 3.], device=NAME) + x.new_tensor(1.),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_what_a_gpu_refuses(sim, name):
    cpu = torch.ones(3, 3)
    with pytest.raises((RuntimeError, TypeError), match="device|generator|numpy"): REFUSED[name](cpu.to(NAME), cpu)


@pytest.mark.parametrize("name", ALLOWED)
def test_allows_what_a_gpu_allows(sim, name): ALLOWED[name](torch.ones(3, 3, device=NAME), torch.ones(3, 3))


COUNTED = {
    ".item()": lambda x: x.sum().item(), ".tolist()": lambda x: x.tolist(), "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0], "copy to the host": lambda x: x.cpu(), "eigh": lambda x: torch.linalg.eigvalsh(x),
    "unique": lambda x: x.unique(), "equal": lambda x: torch.equal(x, x),
}
AS_ITEM = {"bool": lambda x: bool((x > 0).all()), "float": lambda x: float(x[0, 0]),
           "if": lambda x: 1 if x.sum() else 0}
UNCOUNTED = {
    "arithmetic": lambda x: (x @ x).sum(0, keepdim=True).exp(), "shapes": lambda x: (len(x), x.shape, x.dtype),
    "where": lambda x: torch.where(x > 0, x, 0.), "a masked fill": lambda x: x.__setitem__(x > 0, 0.),
    "an index": lambda x: x[torch.zeros(2, dtype=torch.long, device=x.device)], "a slice": lambda x: x[1:, 0].clone(),
}


@pytest.mark.parametrize("kind", COUNTED)
def test_counts_waits(sim, kind):
    x = torch.eye(3, device=NAME)
    COUNTED[kind](x)
    assert kinds(sim) == [kind]


@pytest.mark.parametrize("name", AS_ITEM)
def test_counts_numbers_that_python_asks_for(sim, name):
    AS_ITEM[name](torch.eye(3, device=NAME))
    assert kinds(sim) == [".item()"]


@pytest.mark.parametrize("name", UNCOUNTED)
def test_does_not_count_what_does_not_wait(sim, name):
    UNCOUNTED[name](torch.eye(3, device=NAME))
    assert kinds(sim) == []


def test_names_the_line_of_the_package(sim):
    from istar_nb.base.points import magnitude
    magnitude(torch.eye(3, device=NAME))
    assert all(wait.place.startswith("points.py:") for wait in sim.waits)


def test_copies_to_the_device_are_counted_apart(sim):
    torch.ones(3).to(NAME)
    assert not sim.waits and sim.uploads.total() == 1


def test_trains_a_network_to_the_same_values():
    torch.manual_seed(0)
    network, x = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 1)), torch.randn(16, 4)
    def trained(network, x):
        optimizer = torch.optim.AdamW(network.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            network(x).square().mean().backward()
            optimizer.step()
        return [p.detach().cpu() for p in network.parameters()]
    expected = trained(copy.deepcopy(network), x)
    with Accelerator() as sim:
        found = trained(network.to(sim.device), x.to(sim.device))
        assert all(p.grad.device == sim.device for p in network.parameters())
    for a, b in zip(expected, found): torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_tensors_are_saved_and_loaded(sim):
    file = io.BytesIO()
    torch.save(dict(weight=torch.ones(2, device=NAME)), file)
    file.seek(0)
    assert torch.load(file, weights_only=True)["weight"].tolist() == [1., 1.]


def test_refuses_float64_if_asked_to():
    with Accelerator(float64=False) as sim:
        x = torch.ones(2).to(sim.device)
        for convert in (lambda: x.double(), lambda: torch.zeros(1, dtype=torch.float64, device=NAME),
                        lambda: x.sum(dtype=torch.float64),
                        lambda: torch.ones(2, dtype=torch.float64).to(NAME)):
            with pytest.raises(TypeError, match="float64"): convert()


def test_the_rest_of_the_process_does_not_see_it():
    with Accelerator() as sim:
        assert torch.accelerator.is_available() and PartialState().device == sim.device
    assert not torch.accelerator.is_available() and PartialState().device.type == "cpu"
