"""Networks of timm on a GPU in bf16 autocast, 16 images: inference of each, and a training step of ResNet-50.

    python -m benchmarks.gpu.convnets [--only timm/resnet50] [--jobs 7] [--kernels 10] ...

Takes the options of `benchmarks.gpu.models`, which says how times are measured.
"""

from __future__ import annotations

from .models import main
from .networks import TIMM

if __name__ == "__main__":
    main(tuple(TIMM), ("timm/resnet50",), __doc__)
