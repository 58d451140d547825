"""Fixtures for tests with other users."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def open_tmp(tmp_path: Path) -> Path:
    """A directory that other users can reach."""
    directory = tmp_path
    while directory.stat().st_uid == os.getuid() and directory != Path("/tmp"):
        directory.chmod(directory.stat().st_mode | 0o055)
        directory = directory.parent
    return tmp_path
