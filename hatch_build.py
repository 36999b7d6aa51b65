"""Builds Litz's native library into the package: hatchling's hook, and ``python hatch_build.py``.

A wheel with the library is one of this platform for Python 3.10 and later; where it cannot be built
the wheel is a pure one, and Litz runs what lies between kernels by Python.
"""

from __future__ import annotations

import importlib.util
import sysconfig
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by hand
    BuildHookInterface = object

ROOT = Path(__file__).parent
SHIPPED = "src/litz/runtime/shipped.py"


def build() -> Path:
    """The library, by the module that knows its source; importing Litz would need torch."""
    spec = importlib.util.spec_from_file_location("litz_shipped", ROOT / SHIPPED)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build_library()


class NativeLibrary(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        try:
            path = build()
        except (RuntimeError, OSError) as e:
            self.app.display_warning(f"Litz's native library is left out: {e}")
            return
        if version == "editable":  # which takes it from where it lies
            return
        inside = path.relative_to(ROOT / "src").as_posix()
        build_data["force_include"][str(path)] = inside
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"cp310-abi3-{platform}"


if __name__ == "__main__":
    print(build())
