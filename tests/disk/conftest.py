import os

import pytest


@pytest.fixture
def quick_disk(monkeypatch):
    """Nothing waits for the disk: what that is for, a power cut, is not tested."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
