"""``python -m benchmarks.gpu.busy``: how long a GPU works on a step, kernel by kernel.

Beside ``python -m benchmarks.gpu``, which times steps from their first to their last event: here
what the host costs is left out without a CUDA graph, and kernels are named.  Each backend has a
process of its own, one after another.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.backends import backend_called
from benchmarks.gpu.workloads import GPU_WORKLOADS, build_on
from benchmarks.step import Step

WARM = 5
STEPS = 10


def kernels(step: Callable[[], Any], steps: int = STEPS) -> dict[str, tuple[float, float]]:
    """Calls a step and milliseconds a step by kernel (copies and fills among them)."""
    for _ in range(WARM):
        step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU], acc_events=True) as p:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in p.events():
        if str(event.device_type).endswith("CUDA"):
            found[event.name][0] += 1 / steps
            found[event.name][1] += event.device_time / 1e3 / steps
    return {name: (calls, ms) for name, (calls, ms) in found.items()}


def show(name: str, backend: str, quick: bool, most: int) -> None:
    traffic = build_on("cuda", name, quick)
    fn = traffic.workload.fn
    if backend != "eager":
        backend_called(backend)
        fn = torch.compile(fn, backend=backend)
    found = kernels(Step(traffic.workload, fn))
    busy = sum(ms for _, ms in found.values())
    print(f"{name}, {backend}: {busy:.3f} ms a step in {len(found)} kernels")
    for kernel, (calls, ms) in sorted(found.items(), key=lambda row: -row[1][1])[:most]:
        print(f"{ms:9.3f} ms {calls:6.0f} x {kernel[:90]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="gpt2_training", help="workloads, comma separated")
    parser.add_argument("--backends", default="inductor,litz")
    parser.add_argument("--most", type=int, default=12, help="kernels to name")
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    names = args.only.split(",")
    unknown = [n for n in names if n not in GPU_WORKLOADS]
    if unknown:
        parser.error(f"no workload {', '.join(unknown)}; there are {', '.join(GPU_WORKLOADS)}")
    if not torch.cuda.is_available():
        parser.error("there is no GPU to look at")
    pairs = [(n, b) for n in names for b in args.backends.split(",")]
    if args.here:
        for name, backend in pairs:
            show(name, backend, args.quick, args.most)
        return 0
    code = 0
    for name, backend in pairs:
        command = [sys.executable, "-m", "benchmarks.gpu.busy", "--here", "--only", name]
        command += ["--backends", backend, "--most", str(args.most)]
        command += ["--quick"] if args.quick else []
        code |= subprocess.run(command, check=False).returncode
    return code


if __name__ == "__main__":
    sys.exit(main())
