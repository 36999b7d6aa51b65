"""A process of the sweep: answers tasks with rows.  Packages of models are imported once."""

from __future__ import annotations

import gc
import sys
import warnings
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from tests.farm import serve, speaker  # noqa: E402


def about(device: str) -> dict[str, Any]:
    """What is run on: the device, and versions of what matters."""
    import importlib.metadata
    import platform

    import torch

    versions = {}
    for name in ("torch", "triton", "transformers", "timm", "diffusers"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    versions["torch"] = torch.__version__
    chip = torch.cuda.get_device_name() if device.startswith("cuda") else platform.machine()
    return {"device": device.partition(":")[0], "chip": chip, "versions": versions}


def main() -> None:
    say = speaker()
    kind, draws, target = sys.argv[1].partition(":")[0], int(sys.argv[2]), sys.argv[3]
    import torch

    warnings.simplefilter("ignore")
    # With TF32 eager's own errors would hide Litz's.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    device = "cuda:0" if kind == "cuda" else kind
    from models_run import run
    from sweep_farm import intact
    from zoo_families import families

    zoo = families()
    of = about(device)

    def answer(task: list[str]) -> dict[str, Any]:
        family, variant, backend = task
        row = run(
            family, zoo[family], variant=variant, device=device, draws=draws, target=target,
            compiler=backend,
        )  # fmt: skip
        gc.collect()
        intact(row.why)
        if kind == "cuda":
            torch.cuda.empty_cache()
        return {"row": row.as_json(), "about": of}

    serve(say, answer)


if __name__ == "__main__":
    main()
