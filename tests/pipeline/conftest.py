"""The rig of every test here. It fails a test of which the loop had to complain."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.pipeline.rig import Rig


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with Rig() as rig:
        yield rig
