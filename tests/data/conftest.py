"""Real CIFAR-100, written once a session."""

import pytest

from cifar_files import make_cifar


@pytest.fixture(scope="session")
def cifar100(tmp_path_factory):
    return make_cifar("cifar100", tmp_path_factory.mktemp("cifar"))
