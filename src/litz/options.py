"""Options: one frozen dataclass, read once per compile from arguments and the environment."""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import field, fields, replace
from typing import Any, Final, Protocol

from litz.dataclass import dataclass
from litz.errors import OptionError

ENV_PREFIX: Final = "LITZ_"
MODES: Final = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def _option(default: Any, doc: str, *, key: bool, choices: tuple[Any, ...] | None = None) -> Any:
    return field(default=default, metadata={"doc": doc, "key": key, "choices": choices})


class GraphHook(Protocol):
    """A user's pass: changes the FX graph of ATen calls in place, or gives another program.

    uuid: a name of what it does, part of the key under which compiled code is cached; it is
    another one whenever the function does something else (a hash of its source, for instance).
    """

    def __call__(self, graph: Any, /) -> Any: ...

    def uuid(self) -> str | bytes: ...


@dataclass(frozen=True)
class Options:
    """What a user can choose.  ``metadata["key"]`` says whether a field changes generated code."""

    mode: str = _option("default", "torch.compile's mode", key=True, choices=MODES)
    numerics: str = _option(
        "eager",
        "'eager' rounds fp16/bf16 where eager rounds; 'fast' keeps fused intermediates in fp32",
        key=True,
        choices=("eager", "fast"),
    )
    rng: str = _option(
        "litz",
        "'litz': counter-based random numbers, seeded by torch; 'eager': torch's own stream",
        key=True,
        choices=("litz", "eager"),
    )
    target: str = _option(
        "",
        "'triton': Triton kernels for CPU graphs too, run by Triton's interpreter (default: C++)",
        key=True,
        choices=("", "triton"),
    )
    on_error: str = _option(
        "raise",
        "when a graph cannot be compiled: 'raise', or run it 'eager' with a warning",
        key=False,
        choices=("raise", "eager"),
    )
    verify: bool = _option(
        False,
        "check every kernel of every run against ATen in float64, and the IR after every stage; "
        "the first wrong kernel raises VerificationError, its inputs and a repro go to repro_dir",
        key=True,
    )
    check_ir: bool = _option(False, "check the IR after every stage", key=False)
    check_calls: bool = _option(
        False,
        "compare what each operator of ATen is handed with the graph's metadata (strides, "
        "alignment, device, dtype) at every call; on under verify",
        key=False,
    )
    show: str = _option(
        "",
        "stages to print, comma separated: graph, program, schedule, kernels, host, code, time",
        key=False,
    )
    progress: bool = _option(
        True,
        "a line on the terminal about what takes longer than two seconds: first calls, tuning, "
        "packaging (never where standard error is no terminal)",
        key=False,
    )
    metrics: str = _option(
        "", "file to which each compile appends its counters, as a line of JSON", key=False
    )
    autotune: int = _option(
        -1,
        "seconds that a graph may spend at its first call on timing block sizes of its GPU kernels "
        "and ways to reduce (-1: 60 in mode 'max-autotune', which tries more of both; else 2, and "
        "only on ways of which it is unknown which is quickest)",
        key=False,
    )
    block_pointers: bool = _option(
        False,
        "Triton kernels: block pointers for rectangular accesses, advanced and rewound by loops",
        key=True,
    )
    reduction: str = _option(
        "",
        "GPU kernels that reduce: the way that each takes where it can, 'persistent' (a block "
        "holds whole rows), 'looped', 'split' or 'lookback' (blocks share a row, scans in one "
        "kernel); default: the quickest",
        key=True,
        choices=("", "persistent", "looped", "split", "lookback"),
    )
    host: str = _option(
        "auto",
        "what runs between kernels: 'python': a printed Python function; 'auto': Litz's executor, "
        "where a program has a plan for it and the executor was built when Litz was installed; "
        "'native': the executor, built at first use where it is not there; 'fx': a torch.fx graph "
        "of the same calls, for who looks at it or changes it",
        key=True,
        choices=("auto", "python", "native", "fx"),
    )
    fuel: int = _option(-1, "stop fusing after so many merges (-1: no limit)", key=True)
    inspect: str = _option(
        "",
        "steps whose tensors are looked at while a program runs, comma separated: kernels, "
        "operators, graph nodes, buffers or lines (model.py:14), '*' for any letters",
        key=True,
    )
    inspect_how: str = _option(
        "print",
        "'print' what such tensors hold; 'check': an error for the first nan or infinity; 'sum': "
        "append records with checksums to inspect_dir, which `litz compare` reads; 'save': the "
        "tensors too",
        key=True,
        choices=("print", "check", "sum", "save"),
    )
    inspect_dir: str = _option("litz_inspect", "folder for the records of 'inspect'", key=True)
    cxx: str = _option("", "the C++ compiler command (default: $CXX, g++, c++, clang++)", key=True)
    isa: str = _option("", "instruction set: generic, avx2, avx512, neon (default: best)", key=True)
    cxx_timeout: int = _option(
        600, "seconds after which a C++ compiler that runs on is stopped (0: never)", key=False
    )
    before_passes: tuple[GraphHook, ...] = _option(
        (), "functions of a GraphModule, run before Litz's graph passes; see GraphHook", key=True
    )
    after_storage: tuple[GraphHook, ...] = _option(
        (), "the same, after views and writes of arguments are made explicit", key=True
    )
    after_simplifying: tuple[GraphHook, ...] = _option(
        (), "the same, after constants, no-ops and equal calls are gone", key=True
    )
    after_layout: tuple[GraphHook, ...] = _option(
        (), "the same, after layouts are chosen, while the graph is still functional", key=True
    )
    after_passes: tuple[GraphHook, ...] = _option(
        (), "the same, after all of Litz's graph passes, when the graph writes in place", key=True
    )
    before_program_passes: tuple[GraphHook, ...] = _option(
        (),
        "functions from a Program to a Program, run on what lowering makes, before Litz's passes",
        key=True,
    )
    after_program_passes: tuple[GraphHook, ...] = _option(
        (), "the same, after them, when it is chosen who computes what", key=True
    )
    partition: tuple[GraphHook, ...] = _option(
        (),
        "functions from a Schedule to a dict from names of its groups to numbers: independent "
        "kernels of one number share a launch, those of different numbers never do",
        key=True,
    )
    host_passes: tuple[GraphHook, ...] = _option(
        (),
        "functions of the GraphModule that runs between kernels, with host='fx': they look at it, "
        "or change it in place",
        key=True,
    )
    bandwidth: int = _option(
        0,
        "MB a second that collectives move, by which it is decided what runs beside them "
        "(0: as measured once of each group of processes; where they do not meet, 100000 between "
        "GPUs, 1000 between CPUs)",
        key=True,
    )
    agreement: int = _option(
        60,
        "seconds for which a process whose graph communicates waits for the others of its group to "
        "compile it, so that they are compared (0: they are not, and no bandwidth is measured)",
        key=False,
    )
    cache_dir: str = _option(
        "", "folder of compiled kernels (default: the user's cache)", key=False
    )
    cache_size: int = _option(
        1024,
        "MiB that the folder of compiled kernels may hold: what was not used for longest goes "
        "(0: no limit)",
        key=False,
    )
    graph_cache: bool = _option(
        True, "keep compiled graphs in the folder of compiled kernels too", key=False
    )
    equal_regions: bool = _option(
        True,
        "trace and differentiate equal regions of a graph, such as layers, once, and schedule few "
        "of many equal copies",
        key=True,
    )
    cuda_graph_shapes: int = _option(
        8,
        "shapes of a graph that modes 'reduce-overhead' and 'max-autotune' record as CUDA graphs "
        "(0: none)",
        key=False,
    )
    repro_dir: str = _option("", "folder for repros of failed compiles (default: here)", key=False)
    jobs: int = _option(
        0, "compiler processes at once (0: one a core, fewer where memory is short)", key=False
    )

    @property
    def by_steps(self) -> bool:
        """Whether each step is a call of its own, which somebody looks at."""
        return self.verify or bool(self.inspect)

    @property
    def tunes_widely(self) -> bool:
        """Whether many block sizes are tried, not only the likely ones."""
        return self.mode.startswith("max-autotune") and self.autotune != 0

    @property
    def tuning_seconds(self) -> int:
        """Seconds that a graph may spend on timing its kernels."""
        return self.autotune if self.autotune >= 0 else 60 if self.tunes_widely else 0

    @property
    def choosing_seconds(self) -> int:
        """Seconds that a graph may spend on timing ways to reduce alone."""
        return 2 if self.autotune < 0 and not self.tunes_widely else 0

    @property
    def shown(self) -> frozenset[str]:
        return frozenset(s.strip() for s in self.show.split(",") if s.strip())

    def hooks(self, group: str) -> tuple[GraphHook, ...]:
        """The user's passes of one such option."""
        found: tuple[GraphHook, ...] = getattr(self, group)
        return found

    def given(self) -> dict[str, str | int | bool]:
        """The options that differ from their defaults and that code depends on."""
        chosen = ((f, getattr(self, f.name)) for f in fields(self) if f.metadata["key"])
        return {f.name: v for f, v in chosen if v != f.default and isinstance(v, str | int | bool)}

    def key(self) -> str:
        """The part of the options that generated code depends on."""
        values = ((f.name, getattr(self, f.name)) for f in fields(self) if f.metadata["key"])
        return ",".join(
            f"{name}={tuple(h.uuid() for h in v) if isinstance(v, tuple) else v!r}"
            for name, v in values
        )


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(known)}"


def _hooks(name: str, value: Any) -> tuple[GraphHook, ...]:
    hooks = tuple(value) if isinstance(value, list | tuple) else (value,)
    for h in hooks:
        if not callable(h):
            raise OptionError(f"option {name!r} wants functions, not {h!r}")
        uuid = h.uuid() if callable(getattr(h, "uuid", None)) else None
        if not isinstance(uuid, str | bytes) or not uuid:
            raise OptionError(
                f"option {name!r}: {h!r} needs a method uuid() that returns a string which is "
                "another one whenever the function does something else: code is cached under it"
            )
    return hooks


def _convert(name: str, value: Any, like: Any, choices: tuple[Any, ...] | None) -> Any:
    if isinstance(like, tuple):
        value = _hooks(name, value)
    elif isinstance(like, bool):
        if isinstance(value, str):
            if value.lower() not in ("0", "1", "true", "false", "yes", "no"):
                raise OptionError(f"option {name!r} wants a bool, not {value!r}")
            value = value.lower() in ("1", "true", "yes")
        if not isinstance(value, bool):
            raise OptionError(f"option {name!r} wants a bool, not {value!r}")
    elif isinstance(like, int):
        try:
            value = int(value)
        except (TypeError, ValueError):
            raise OptionError(f"option {name!r} wants an int, not {value!r}") from None
    elif not isinstance(value, str):
        raise OptionError(f"option {name!r} wants a string, not {value!r}")
    if choices is not None and value not in choices:
        raise OptionError(
            f"option {name!r} has no value {value!r}{_nearest(str(value), list(choices))}"
        )
    return value


SHOWN: Final = ("graph", "program", "schedule", "plan", "kernels", "host", "code", "time", "all")


def unknown_variables(environ: Iterable[str]) -> dict[str, str]:
    """What is wrong with each name among ``environ`` that looks like a variable of Litz's."""
    known = [ENV_PREFIX + f.name.upper() for f in fields(Options)]
    strange = [n for n in environ if n.startswith(ENV_PREFIX) and n not in known]
    nearest = [difflib.get_close_matches(n, known, n=1, cutoff=0)[0] for n in strange]
    return {n: f"no option; did you mean {x}?" for n, x in zip(strange, nearest, strict=True)}


def make_options(
    given: Mapping[str, Any] | None = None,
    mode: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Options:
    """Options from ``torch.compile(options=, mode=)`` over ``LITZ_*`` variables over defaults.

    Raises OptionError for an unknown name (naming the nearest known one) or a value of the wrong
    kind; an unknown variable of this process may be another program's, and is warned of.
    """
    table = {f.name: f for f in fields(Options)}
    defaults = Options()
    env = os.environ if environ is None else environ
    for name, why in unknown_variables(env).items() if environ is None else ():
        warnings.warn(f"litz: the variable {name} is ignored: {why}", stacklevel=2)
    merged: dict[str, Any] = {
        name: env[ENV_PREFIX + name.upper()] for name in table if ENV_PREFIX + name.upper() in env
    }
    if mode is not None:
        merged["mode"] = mode
    for name, value in (given or {}).items():
        if name not in table:
            raise OptionError(f"unknown option {name!r}{_nearest(name, list(table))}")
        merged[name] = value
    values = {
        name: _convert(name, v, getattr(defaults, name), table[name].metadata["choices"])
        for name, v in merged.items()
    }
    options = replace(defaults, **values)
    for stage in sorted(options.shown):
        if stage not in SHOWN:
            raise OptionError(f"no stage {stage!r} to show{_nearest(stage, list(SHOWN))}")
    if options.host_passes and options.host != "fx":
        raise OptionError(f"host_passes are for host='fx', not {options.host!r}")
    return options
