"""Install torch, triton, kernels and Liger into this environment, if this machine has an NVIDIA GPU.

A replay needs none of them, and a CUDA build of torch takes gigabytes.
"""

import subprocess
import sys
from pathlib import Path

from kernelperf.environment import find_gpu

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Return the exit status of the installation, or 0 where none is needed."""
    gpu = find_gpu()
    if gpu is None:
        print("no NVIDIA GPU found: the suite replays a recording, which needs no torch")
        return 0
    print(f"{gpu.name} found: installing the GPU stack")
    pip = [sys.executable, "-m", "pip", "install", "--quiet"]
    return subprocess.call([*pip, "--editable", f"{ROOT}[torch,liger]"])


if __name__ == "__main__":
    sys.exit(main())
