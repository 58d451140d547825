"""Run each contract test on every backend that has the features the test needs."""

import pytest

from contract.backend import BACKENDS


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the backends when tests are collected, so that no test is skipped."""
    if "backend" not in metafunc.fixturenames:
        return
    needed = {
        feature
        for marker in metafunc.definition.iter_markers("needs")
        for feature in marker.args
        if isinstance(feature, str)
    }
    able = [backend for backend in BACKENDS.values() if needed <= backend.features]
    metafunc.parametrize("backend", able, ids=[backend.name for backend in able])
