"""``litz doctor``, or ``python -m litz.tools.doctor``: what Litz finds on this machine.

Prints a table, ``--json`` a JSON object; what is not right stands there with what mends it.  The
exit status is 0 when all that this machine needs is there and works, 1 when something is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from litz.dataclass import dataclass
from litz.errors import OptionError
from litz.options import ENV_PREFIX, make_options, unknown_variables
from litz.version import __version__

# Both import torch, which may be what is missing.
if TYPE_CHECKING:
    from litz.tools.machine import Machine

State = Literal["ok", "warning", "missing"]


@dataclass(frozen=True)
class Check:
    """What was found of one thing.

    state:  'warning': Litz works, less well than it could; 'missing': something is not there or
            does not work, and this machine needs it.
    mend:   the command or the words that help; '' where nothing needs to be done.
    """

    name: str
    state: State
    found: str
    mend: str = ""


def refused(environment: Mapping[str, str]) -> dict[str, str]:
    """Why each variable that is set to what its option cannot be is refused."""
    errors = {}
    for name, value in environment.items():
        try:
            make_options(environ={name: value})
        except OptionError as error:
            errors[name] = str(error)
    return errors


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text.partition("+")[0])[:2]))


def _wanted(needs: Sequence[str], package: str, relation: str) -> str:
    """The version in a requirement such as ``torch>=2.11``; '' where there is none."""
    found = (re.match(rf"{package}\s*{relation}\s*([\d.]+)", need) for need in needs)
    return next((f[1] for f in found if f), "")


def _for_cpus(m: Machine) -> State:
    """The state of what CPU graphs lack: with a GPU, they are not all."""
    return "warning" if m.gpus else "missing"


def check_litz(m: Machine) -> Check:
    said = f"{__version__}, Python {m.python}"
    if m.backend:
        return Check("litz", "ok", said)
    said += ', but not installed: PyTorch does not know backend="litz"'
    return Check("litz", "missing", said, "pip install -e .  (in the folder of Litz's sources)")


def check_torch(m: Machine) -> Check:
    least = _wanted(m.needs["litz"], "torch", ">=")
    if least and _version(m.torch) < _version(least):
        said = f"{m.torch}, which is older than {least}"
        return Check("torch", "missing", said, f"pip install 'torch>={least}'")
    return Check("torch", "ok", m.torch + (f" (supported: {least} and later)" if least else ""))


def check_triton(m: Machine) -> Check:
    least = _wanted(m.needs["litz"], "triton", ">=")
    fits = _wanted(m.needs["torch"], "triton", "==")
    mend = f"pip install 'triton{f'=={fits}' if fits else f'>={least}' if least else ''}'"
    if isinstance(m.triton, str):
        if m.gpus:
            return Check("triton", "missing", m.triton, mend)
        return Check("triton", "ok", "none: CPUs do without it")
    found = m.triton.version or "of unknown version"
    if least and m.triton.version and _version(found) < _version(least):
        state: State = "missing" if m.gpus else "warning"
        return Check("triton", state, f"{found}, which is older than {least}", mend)
    if fits and _version(found) != _version(fits):
        return Check("triton", "warning", f"{found}, but torch {m.torch} wants {fits}", mend)
    return Check("triton", "ok", found)


def check_compiler(m: Machine) -> Check:
    from litz.targets.cpp.toolchain import INSTALL

    name = "C++ compiler"
    if isinstance(m.compiler, str):
        return Check(name, _for_cpus(m), m.compiler.removesuffix(INSTALL).rstrip(". "), INSTALL)
    said = f"{shlex.join(m.compiler.cxx)}, {m.compiler.version}"
    if isinstance(m.ran, str):
        mend = "name another compiler in LITZ_CXX, a folder from which code may run in TMPDIR"
        return Check(name, _for_cpus(m), f"{said}; it does not make kernels: {m.ran}", mend)
    ran = f"built and ran in {m.ran.seconds:.2f} s" if m.ran else "was not tried"
    return Check(name, "ok", f"{said}; a kernel {ran}")


def check_executor(m: Machine) -> Check:
    name = "native executor"
    if isinstance(m.executor, str):
        mend = "with g++ there: pip install --force-reinstall --no-deps --no-binary litz litz"
        if Path(__file__).parents[3].joinpath("hatch_build.py").is_file():
            mend = "with g++ there: python hatch_build.py  (in the checkout)"
        return Check(name, "warning", f"{m.executor}; printed Python runs in its place", mend)
    return Check(name, "ok", f"loaded: {m.executor.name}")


def check_isa(m: Machine) -> Check:
    name, mend = "instruction set", "unset LITZ_ISA"
    if isinstance(m.isa, str):
        return Check(name, "missing", m.isa, mend)
    said = " ".join((m.isa.name, *m.isa.features)) + f", {m.isa.lanes_f32} float32 lanes"
    if m.isa == m.best:
        return Check(name, "ok", said)
    said += f"; this processor has {m.best.name}"
    return Check(name, "warning" if m.safe else "missing", said, mend)


def check_openmp(m: Machine) -> Check:
    said = "loaded with PyTorch: " + (", ".join(m.openmp) or "none")
    if len(m.openmp) > 1:
        said += "; they compete for the cores"
        return Check("OpenMP", "warning", said, "unset LD_PRELOAD; import torch first")
    if m.ran is None or isinstance(m.ran, str):
        return Check("OpenMP", "ok", said)
    if m.ran.threads != m.threads:
        said += f"; PyTorch runs on {m.threads} threads, kernels on {m.ran.threads}"
        return Check("OpenMP", "warning", said, "export LITZ_CXX=g++  (clang's OpenMP is another)")
    return Check("OpenMP", "ok", f"{said}; kernels use it too, on {m.threads} threads")


def check_gpus(m: Machine) -> Check:
    found = ", ".join(m.gpus)
    if isinstance(m.driver, str):
        said = f"{found or 'none'}; the driver does not work: {m.driver}"
        return Check("GPUs", "missing", said, "nvidia-smi  (says more; install the GPU's driver)")
    if m.driver is None:
        if not m.gpus:
            return Check("GPUs", "ok", "none: graphs on CPUs are compiled")
        mend = "let the loader find libcuda.so.1 (LD_LIBRARY_PATH)"
        return Check("GPUs", "missing", f"{found}; no CUDA driver was found", mend)
    driver = f"the driver is one of CUDA {m.driver // 1000}.{m.driver % 1000 // 10}"
    if m.gpus:
        return Check("GPUs", "ok", f"{found}; {driver}")
    mend = "pip install --force-reinstall torch  (a build for CUDA)"
    return Check("GPUs", "warning", f"{driver}, but torch {m.torch} finds no GPU", mend)


def check_triton_kernel(m: Machine) -> Check:
    name = "Triton kernel"
    if isinstance(m.built, str):
        mend = "pip install --force-reinstall triton"
        return Check(name, "missing" if m.gpus else "warning", m.built, mend)
    if m.built is None:
        return Check(name, "ok", "not tried without Triton")
    ran = "built and ran" if m.gpus else "built for compute capability 9.0"
    return Check(name, "ok", f"{ran} in {m.built:.2f} s")


def check_cache(m: Machine) -> Check:
    name, f = "cache folder", m.folder
    elsewhere = "export LITZ_CACHE_DIR=FOLDER  (one of your own that can be written)"
    if f is None:
        return Check(name, "warning", "none: there is no home folder", elsewhere)
    limit = f"of {f.limit >> 20} MiB" if f.limit else "without a limit"
    said = f"{f.path}, {f.size / 2**20:.1f} MiB {limit}"
    if not f.writable:
        said += "; it cannot be written: each process compiles anew"
        return Check(name, "warning", said, elsewhere)
    if not f.mine:
        return Check(name, "warning", f"{said}; it is another user's, as is its code", elsewhere)
    if f.mode & 0o022:
        said += "; others can write there, and their code would run"
        return Check(name, "warning", said, f"chmod -R go-w {shlex.quote(f.path)}")
    return Check(name, "ok", said)


def check_environment(m: Machine) -> Check:
    wrong, strange = refused(m.environment), unknown_variables(m.environment)
    state: State = "missing" if wrong else "warning" if strange else "ok"
    wrong |= strange
    given = m.environment.items()
    said = [f"{k}={v} ({wrong[k]})" if k in wrong else f"{k}={v}" for k, v in given]
    mend = f"unset {' '.join(wrong)}" if wrong else ""
    return Check("environment", state, "\n".join(said) or "no LITZ_ variables are set", mend)


def check_compiled(m: Machine, device: str) -> Check:
    from litz.tools.demo import is_right

    name, made = f"torch.compile, {device}", m.compiled[device]
    if isinstance(made, str):
        return Check(name, "missing", made, "mend what is missing above; else please report it")
    if made.fallback:
        said = f"runs through ATen: {made.fallback.removeprefix('litz: ')}"
        state: State = "missing" if device == "cuda" else _for_cpus(m)
        return Check(name, state, said, "mend what is missing above")
    errors = f"relative error {made.error:.1e} (eager {made.eager_error:.1e})"
    if not is_right(made.error, made.eager_error):
        mend = "LITZ_VERIFY=1 litz doctor  (names the kernel; please report it)"
        return Check(name, "missing", f"WRONG: {errors}", mend)
    return Check(name, "ok", f"right: {errors}, first call {made.seconds:.2f} s")


CHECKS = (
    *(check_litz, check_torch, check_triton, check_compiler, check_executor),
    *(check_isa, check_openmp, check_gpus, check_triton_kernel, check_cache, check_environment),
)


def examine(m: Machine) -> tuple[Check, ...]:
    """All checks of a machine, in the order in which they are printed."""
    return (*(check(m) for check in CHECKS), *(check_compiled(m, d) for d in m.compiled))


def look_here() -> tuple[Check, ...]:
    """All checks of this machine; one alone where nothing works without what it is about."""
    environment = {k: v for k, v in sorted(os.environ.items()) if k.startswith(ENV_PREFIX)}
    errors = refused(environment)
    try:
        import torch  # noqa: F401
    except (ImportError, OSError) as error:
        return (Check("torch", "missing", f"cannot be imported: {error}", "pip install torch"),)
    from litz.tools.machine import look

    options = make_options(environ={k: v for k, v in environment.items() if k not in errors})
    try:
        return examine(look(options, environment))
    except FileNotFoundError as error:
        mend = "export TMPDIR=FOLDER  (one that can be written)"
        return (Check("temporary folder", "missing", str(error), mend),)


def table(checks: Sequence[Check]) -> str:
    """The checks as lines of text."""
    width = max(len(c.name) for c in checks)
    lines = []
    for c in checks:
        first, *more = [*c.found.splitlines(), *([f"mend: {c.mend}"] if c.mend else [])]
        lines.append(f"{c.state:8} {c.name:{width}}  {first}")
        lines += [f"{'':{width + 11}}{line}" for line in more]
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="litz doctor", description=__doc__)
    made.add_argument("--json", action="store_true", help="print a JSON object")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    asked = parser().parse_args(arguments)
    checks = look_here()
    good = all(c.state != "missing" for c in checks)
    if asked.json:
        print(json.dumps({"ok": good, "checks": [asdict(c) for c in checks]}, indent=2))
    else:
        print(table(checks))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
