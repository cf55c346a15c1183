"""Operations on tensors of several devices break the graph where eager refuses them, also where nobody reads them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.triton import cuda_captures, mixed_devices

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is feigned"),
    pytest.mark.skipif(cuda_captures.compiler() is None, reason="there is no compiler"),
    pytest.mark.skipif(not torch.__version__ >= "2.13", reason="this torch asks for more than a guard"),
]


def test_what_eager_refuses_breaks_the_graph(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "tests.triton.mixed_devices", str(tmp_path)], check=True, text=True,
                          cwd=Path(__file__).parents[2], stdout=subprocess.PIPE)
    found = json.loads(done.stdout.splitlines()[-1])
    assert {name for name, breaks in found.items() if breaks} == set(mixed_devices.REFUSED)
    assert len(found) == len(mixed_devices.REFUSED) + len(mixed_devices.TAKEN)
