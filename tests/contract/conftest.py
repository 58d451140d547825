"""Runs each test of the contract over every backend that has what the test needs."""

import pytest

from contract.backend import BACKENDS


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose by features when tests are collected, so that nothing has to be skipped."""
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
