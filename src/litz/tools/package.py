"""``litz.package`` and ``litz package``: one file with a program, its constants and its kernels."""

from __future__ import annotations

import argparse
import copy
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram, export

from litz.artifact import Artifact, UsersKernel, tensor_bytes, to_bytes
from litz.compiler import compile_graph
from litz.dataclass import dataclass
from litz.errors import GraphUnsupported, LitzError, PackageError
from litz.host.values import describe
from litz.loading.container import Writer
from litz.loading.loaded import versions
from litz.loading.record import Built, Launcher, Program, Target, Tensor, Unit, to_json
from litz.options import Options, make_options
from litz.report.gather import Gathered
from litz.report.trace import provenance
from litz.runtime.cache import unsealed
from litz.runtime.collector import uncollected
from litz.runtime.cpu import needs, plain_isa
from litz.runtime.fake import unset_fake_temporarily
from litz.runtime.products import product
from litz.runtime.progress import Progress
from litz.runtime.torch_private import recording_guards, widen
from litz.stages import Stages
from litz.targets.cpp.build import make_units
from litz.targets.cpp.toolchain import (
    SourceUnit,
    Toolchain,
    executor_unit,
    find_toolchain,
    runtime_unit,
    submit,
)
from litz.targets.parts import CppPart, Part, TritonPart
from litz.targets.records import part_from
from litz.targets.tools import Tools
from litz.tools import package_tune
from litz.tools.exported import Exported, exported, guards_of, place_of
from litz.tools.package_tune import Tuned


def package(
    program: ExportedProgram | torch.nn.Module,
    path: Path | str,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    options: Mapping[str, Any] | None = None,
    isas: Sequence[str] = (),
    targets: Sequence[str] = (),
) -> None:
    """Compile a program and write it to one file; see ``litz.package``."""
    if not isinstance(program, ExportedProgram):
        program = export(program, args, dict(kwargs or {}), dynamic_shapes=dynamic_shapes)
    elif args or kwargs or dynamic_shapes is not None:
        raise PackageError("litz: an exported program has its arguments and dynamic shapes already")
    chosen = replace(make_options(options), host="native", check_calls=False)
    if chosen.verify:
        raise PackageError("litz: checked runs (verify) cannot be packaged")
    found = exported(program)
    said = Progress(lambda: f"packaging {Path(path).name}", chosen.progress)
    with said, Writer(path) as out, uncollected(), unset_fake_temporarily():
        built, conditions = _targets(found, chosen, isas, targets, out)
        record = Program(
            found.inputs,
            found.symbols,
            found.bindings,
            guards_of(found, conditions),
            _constants(found, out),
            found.outputs,
            found.in_spec,
            found.out_spec,
            built,
            versions(),
        )
        out.add("program.json", to_json(record))


def _targets(
    found: Exported, options: Options, isas: Sequence[str], gpus: Sequence[str], out: Writer
) -> tuple[tuple[Target, ...], list[Any]]:
    """The program built for each instruction set, and the conditions that compiling added.

    gpus: the generations that GPU kernels are built for.
    """
    targets: list[Target] = []
    conditions: list[Any] = []

    def target(made: Artifact, options: Options, toolchain: Toolchain | None) -> Target:
        tunes = options.tuning_seconds and any(_on_gpus(a) for a in _all(made))
        best = package_tune.tuned(made, found, options, gpus) if tunes else Tuned()
        return _Parts(options, toolchain, gpus, out, best).target(made)

    if not isas and not found.on_cpu:
        made, conditions, whence = _compiled(found, options)
        if not any(k.language == "c++" for a in _all(made) for k in a.kernels):
            out.add("any/provenance.json", whence)
            return (target(made, options, None),), conditions
    cxx, cache = options.cxx or None, Tools(options).cache
    named = [find_toolchain(cxx, plain_isa(name), cache) for name in dict.fromkeys(isas)]
    # The best first: that is what a machine with several takes.
    for toolchain in sorted(named or [Tools(options).toolchain], key=lambda t: -t.lanes_f32):
        own = replace(options, isa=toolchain.isa)
        made, more, whence = _compiled(found, own)
        out.add(f"{own.isa}/provenance.json", whence)
        targets.append(target(made, own, toolchain))
        conditions += more
    return tuple(targets), conditions


def _compiled(found: Exported, options: Options) -> tuple[Artifact, list[Any], bytes]:
    """The program's code, the conditions that compiling added, and the provenance of kernels."""
    graph, conditions, stages = copy.deepcopy(found.graph), [], Stages()
    try:
        if found.env is None:
            made = compile_graph(graph, options, stages, inference=True, guarded=True)
        else:
            passes = (*options.after_passes, _Widening(found))
            options = replace(options, after_passes=passes)
            with recording_guards(found.env) as conditions:
                made = compile_graph(graph, options, stages, inference=True, guarded=True)
    except GraphUnsupported as e:
        raise PackageError(f"litz: the program cannot be packaged: it has {e}") from e
    _check(made)
    gathered = Gathered("g0", "inference", graph, stages)
    return made, conditions, provenance(gathered, whole=False).encode()


@dataclass(frozen=True)
class _Widening:
    """A graph pass, the last one: code is made for 0 and 1 as well.

    Before it sizes are from 2 on, as where PyTorch traced: how tensors of 0 or 1 rows lie is all
    the same.
    """

    found: Exported

    def __call__(self, graph: object) -> None:
        widen(self.found.env, {name: b.low for name, b in self.found.symbols.items()})

    def uuid(self) -> str:
        return "sizes of a package"


def _check(made: Artifact) -> None:
    if made.not_portable:
        raise PackageError(f"litz: the program cannot be packaged: {made.not_portable}")
    for a in _all(made):
        if any(isinstance(v, UsersKernel) for v in a.host.values.values()):
            raise PackageError("litz: a program with Triton kernels of yours is not packaged yet")


def _all(made: Artifact) -> Iterator[Artifact]:
    """An artifact, its bodies, and theirs."""
    yield made
    for body in made.bodies.values():
        yield from _all(body)


def _on_gpus(made: Artifact) -> bool:
    """Whether it has kernels or tuned products on GPUs."""
    names = describe(product) in made.host.values.values()
    return names or any(isinstance(part_from(k), TritonPart) for k in made.kernels)


class _Parts:
    """Writes what is built for one instruction set; toolchain: None where no kernel is of C++."""

    def __init__(
        self,
        options: Options,
        toolchain: Toolchain | None,
        gpus: Sequence[str],
        out: Writer,
        best: Tuned,
    ) -> None:
        self._options, self._toolchain, self._gpus, self._out = options, toolchain, gpus, out
        self._folder = toolchain.isa if toolchain else "any"
        self._best = best

    def target(self, made: Artifact) -> Target:
        t, name, products = self._toolchain, self._folder, self._best.products
        built = self._built(made, name)
        self._out.add(f"{name}/artifact", to_bytes(_bare(made)))
        here = f"{sys.platform} {platform.machine()}"
        if t is None:
            return Target(name, here, (), f"{name}/artifact", built, "", "", products)
        entries = f"{name}/runtime.so", f"{name}/executor.so"
        objects = self._objects([runtime_unit(), executor_unit()])
        for entry, data in zip(entries, objects, strict=True):
            self._out.add(entry, data)
        wanted = needs(t.isa, t.features)
        return Target(name, here, wanted, f"{name}/artifact", built, *entries, products)

    def _built(self, made: Artifact, folder: str) -> Built:
        every = [part_from(k) for k in made.kernels]
        parts = [p for p in every if isinstance(p, CppPart)]
        units = make_units(parts, self._options.jobs) if parts else ()
        entries = []
        for n, (unit, data) in enumerate(
            zip(units, self._objects([u.source for u in units]), strict=True)
        ):
            entries.append(Unit(f"{folder}/kernels{n}.so", unit.kernels))
            self._out.add(entries[-1].entry, data)
        bodies = {n: self._built(a, f"{folder}/{n}") for n, a in made.bodies.items()}
        return Built(tuple(entries), self._launchers(every), bodies)

    def _launchers(self, parts: Sequence[Part]) -> tuple[Launcher, ...]:
        own = [p for p in parts if isinstance(p, TritonPart)]
        if not own:
            return ()
        if any(p.device == "cpu" for p in own):
            raise PackageError("litz: interpreted kernels (target triton) are not packaged")
        from litz.tools.package_gpu import GpuParts, generations  # the CPU does without it

        cache, jobs = Tools(self._options).cache, self._options.jobs
        targets = generations(self._gpus)
        return GpuParts(targets, cache, jobs or None, self._out, self._best.choices).launchers(own)

    def _objects(self, units: Sequence[SourceUnit]) -> list[bytes]:
        """The shared objects of translation units."""
        if not units:
            return []
        assert self._toolchain is not None
        o, cache = self._options, Tools(self._options).cache
        handle = submit(units, self._toolchain, cache, o.jobs or None, seconds=o.cxx_timeout)
        return [unsealed(p.name, p.read_bytes()) or b"" for p in handle.wait()]


def _bare(made: Artifact) -> Artifact:
    """An artifact without what building its kernels takes."""
    kernels = tuple(replace(k, sources=(), headers=(), launches={}) for k in made.kernels)
    return replace(
        made, kernels=kernels, bodies={name: _bare(body) for name, body in made.bodies.items()}
    )


def _constants(found: Exported, out: Writer) -> tuple[Tensor, ...]:
    """The constants written; those that are the same memory have one entry."""
    entries: dict[object, str] = {}
    names: dict[str, str] = {}
    for name, x in found.constants.items():
        place: object = place_of(x) if x.numel() else name
        if place not in entries:
            entries[place] = f"constants/{name}"
            out.add(entries[place], tensor_bytes(x))
        names[name] = entries[place]
    written = {names[name] for name in found.written}
    return tuple(
        Tensor(
            name,
            names[name],
            x.dtype,
            x.device,
            tuple(x.shape),
            x.stride(),
            names[name] in written,
        )
        for name, x in found.constants.items()
    )


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="litz package", description=__doc__)
    made.add_argument("program", help="a file that torch.export.save wrote (.pt2)")
    made.add_argument("path", help="the package to write")
    made.add_argument("--isa", action="append", default=[], help="an instruction set, repeated")
    made.add_argument("--target", action="append", default=[], help="as sm_90, repeated")
    made.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    asked = parser().parse_args(arguments)
    try:
        options = dict(o.partition("=")[::2] for o in asked.option)
        program = torch.export.load(asked.program)
        package(program, asked.path, options=options, isas=asked.isa, targets=asked.target)
    except (LitzError, OSError, ValueError, RuntimeError) as e:
        print(f"litz package: {e}", file=sys.stderr)
        return 2
    return 0
