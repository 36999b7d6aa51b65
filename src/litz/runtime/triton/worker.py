"""Compile workers: processes that import Triton, never torch, and compile one kernel at a time.

Started as a script by ``litz.runtime.triton.pool``: the server, which imports Triton and forks the
workers that it is asked for.  To and from a worker go frames, each a length of 8 bytes and that
many bytes: a job's JSON in; out "+" and a binary's bytes, "-" and the JSON of a fault, or "!" and
why nothing can be compiled here.  To and from the server go pairs of numbers, ``REQUEST``: ``FORK``
and a bound on memory, with the files of the worker's connection and of its messages; ``END`` and a
worker's process id.
"""

from __future__ import annotations

import ctypes
import gc
import json
import linecache
import os
import re
import resource
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from litz.runtime.triton.job import Binary, KernelJob


REQUEST = struct.Struct("<Bq")
FORK, END = 0, 1
GRACE = 2.0  # seconds for which a worker whose connection is closed may go on
PR_SET_PDEATHSIG = 1
WARPS = (2, 4, 8, 1)  # numbers to try where Triton fails at another
# What printed kernels call ``litz``, and what hides their reductions from Triton's passes.
HELPERS = "from litz.runtime.triton import helpers as litz\n"
HIDDEN = "from litz.runtime.triton import hidden as litz\n"


def import_package(name: str, folder: str) -> None:
    """Import a package from its folder, wherever ``sys.path`` leads."""
    init = os.path.join(folder, "__init__.py")
    spec = spec_from_file_location(name, init, submodule_search_locations=[folder])
    if spec is None or spec.loader is None:
        raise ImportError(f"no package in {folder}")
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def warm() -> None:
    """Import what every compilation needs while nothing waits for it."""
    import triton.backends  # noqa: F401
    import triton.compiler.code_generator  # noqa: F401

    from litz.runtime.triton import helpers  # noqa: F401


def load(job: KernelJob) -> Any:
    """The job's ``@triton.jit`` function.  Triton reads its source by way of its file."""
    filename = file_of(job)
    linecache.cache[filename] = (len(job.source), None, job.source.splitlines(True), filename)
    module: dict[str, Any] = {"__name__": f"litz_kernel_{job.name}", "__file__": filename}
    exec(compile(job.source, filename, "exec"), module)
    return module[job.name]


def file_of(job: KernelJob) -> str:
    return f"<litz kernel {job.name}>"


def compile_job(job: KernelJob) -> Binary:
    """The binary of a job; raises whatever Triton raises.

    Triton's own passes break some kernels (3.6: values that do not dominate their uses), most of
    them where they move layouts beyond a reduction, others at one number of warps and not at
    another: so reductions are hidden from them, and then come the other numbers.
    """
    options = dict(job.options)
    try:
        return compile_as(job, options)
    except RuntimeError as error:
        if "PassManager::run failed" not in str(error):
            raise
        hidden = job.source.replace(HELPERS, HIDDEN)
        reduces = any(f"litz.{name}(" in hidden for name in ("sum", "prod", "max", "min"))
        others = [(hidden, options)] if reduces else []
        others += [
            (job.source, {**options, "num_warps": n})
            for n in WARPS
            if n != options.get("num_warps")
        ]
        for source, changed in others:
            with suppress(RuntimeError):
                return compile_as(replace(job, source=source), changed)
        raise


def compile_as(job: KernelJob, options: dict[str, Any]) -> Binary:
    """The binary of a job with some options of Triton's."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from litz.runtime.triton.job import Binary

    fn = load(job)
    if [name for name, _ in job.signature] != list(fn.arg_names):
        raise ValueError(f"the function's arguments are {fn.arg_names}, not the signature's")
    place = {name: i for i, name in enumerate(fn.arg_names)}
    attrs = {(place[name],): [["tt.divisibility", 16]] for name in job.divisible}
    signature = {name: type_.partition("[")[0] for name, type_ in job.signature}
    source = ASTSource(fn, signature, dict(job.constants), attrs)
    made, data = run_stages(source, GPUTarget(*job.target), options, array_of(job))
    if data.get("num_ctas", 1) != 1:
        raise ValueError("clusters of blocks (the option num_ctas) are not supported")
    for name in ("launch_cooperative_grid", "launch_pdl"):
        if data.get(name):
            raise ValueError(f"the option {name} is not supported")
    # The driver knows the end of a text by its zero.
    return Binary(
        made["cubin"] if job.form == "cubin" else made["ptx"].encode() + b"\0",
        data["name"],
        params_of(made["ptx"], data["name"]),
        data["shared"],
        data["num_warps"],
        job.target[2],
        (data.get("global_scratch_size") or 0, data.get("global_scratch_align") or 1),
        (data.get("profile_scratch_size") or 0, data.get("profile_scratch_align") or 1),
    )


def array_of(job: KernelJob) -> int:
    """How many numbers a job's first argument is; 0 where it is one."""
    return int(job.signature[0][1].partition("[")[2].rstrip("]") or 0) if job.signature else 0


def run_stages(
    source: Any, target: Any, options: dict[str, Any], array: int = 0
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(result of every stage by its name, metadata).  array: see ``ptx.with_array``.

    The same steps as ``triton.compile``, without its cache: that reads all of Triton's libraries to
    make a key, which takes longer than several kernels do.
    """
    from triton._C.libtriton import ir
    from triton.backends.compiler import Language
    from triton.compiler.compiler import make_backend

    from litz.runtime.triton.ptx import improved, with_array

    backend = make_backend(target)
    parsed = backend.parse_options(options)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, parsed, Language.TRITON)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions = backend.get_codegen_implementation(parsed)
    module = source.make_ir(target, parsed, functions, backend.get_module_map(), context)
    metadata = {"target": target, **vars(parsed)}
    made: dict[str, Any] = {}
    for name, stage in stages.items():
        module = stage(module, metadata)
        if name == "ptx":
            module = improved(with_array(module, array) if array else module)
        made[name] = module
    return made, metadata


_PARAM = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.([a-z]+)(\d+)\s+([^,)]*)")
_ARRAY = re.compile(r"\[(\d+)\]\s*$")


def params_of(ptx: str, entry: str) -> tuple[int, ...]:
    """Bytes of each parameter of an entry function."""
    start = ptx.index("(", ptx.index(f".entry {entry}"))
    head = ptx[start : ptx.index(")\n", start) + 1]
    sizes = []
    for m in _PARAM.finditer(head):
        array = _ARRAY.search(m[3])
        sizes.append(int(m[2]) // 8 * (int(array[1]) if array else 1))
    if len(sizes) != head.count(".param"):
        raise ValueError(f"parameters that are not understood: {head}")
    return tuple(sizes)


def fault_of(error: BaseException, job: KernelJob) -> dict[str, object]:
    """An error as data: its kind, what it says, and the line of the job's source (0: unknown)."""
    parts: list[str] = []
    line = 0
    at: BaseException | None = error
    while at is not None:
        node, text = getattr(at, "node", None), getattr(at, "error_message", None)
        own = str(at) if node is None else f"{text or ''}"
        if node is not None and not line:
            line = line_of(node, getattr(at, "src", None), job)
        elif node is not None and text:
            own = str(at)  # in a function that the kernel calls: with its lines
        elif isinstance(at, SyntaxError) and at.filename == file_of(job):
            line = line or at.lineno or 0
        if own and own not in parts:
            parts.append(own)
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)
    said = "\n".join(parts) or repr(error)
    return {"kind": type(error).__name__, "said": said, "line": line}


def line_of(node: Any, src: str | None, job: KernelJob) -> int:
    """The line of a node of the kernel's own source, else 0."""
    lines = job.source.splitlines()
    heads = [i for i, text in enumerate(lines) if text.startswith(f"def {job.name}(")]
    row: int = getattr(node, "lineno", 0)
    if not heads or not row or src is None:
        return 0
    body = src.splitlines()
    inside = row <= len(body) and heads[0] + row <= len(lines)
    return heads[0] + row if inside and lines[heads[0] + row - 1] == body[row - 1] else 0


def answer(text: str) -> bytes:
    from litz.runtime.triton.job import KernelJob

    job = KernelJob.from_json(text)
    try:
        return b"+" + compile_job(job).to_bytes()
    except Exception as error:
        return b"-" + json.dumps(fault_of(error, job)).encode()


def serve(connection: socket.socket, answer: Callable[[str], bytes]) -> None:
    """Answer jobs until the other end closes."""
    while len(head := connection.recv(8, socket.MSG_WAITALL)) == 8:
        (size,) = struct.unpack("<Q", head)
        body = answer(connection.recv(size, socket.MSG_WAITALL).decode())
        connection.sendall(struct.pack("<Q", len(body)) + body)


def work(files: list[int], memory: int, answer: Callable[[str], bytes]) -> None:
    """Be a worker, in a process of its own; memory: bytes of data that it may have, 0 for any."""
    with suppress(OSError, AttributeError):  # Linux alone can tell of a server that was killed
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setpgid(0, 0)  # with the assembler that it starts
    connection = socket.socket(fileno=files[0])
    os.dup2(files[1], 1)
    os.dup2(files[1], 2)
    if memory:
        most = resource.getrlimit(resource.RLIMIT_DATA)[1]
        kept = memory if most == resource.RLIM_INFINITY else min(memory, most)
        resource.setrlimit(resource.RLIMIT_DATA, (kept, most))
    with suppress(BrokenPipeError, ConnectionResetError):
        serve(connection, answer)


def fork_workers(control: socket.socket, answer: Callable[[str], bytes]) -> None:
    """Fork workers until the other end closes, then end them."""
    workers: set[int] = set()
    while True:
        data, files, _, _ = socket.recv_fds(control, REQUEST.size, 2)
        if len(data) < REQUEST.size:
            break
        what, number = REQUEST.unpack(data)
        if what == FORK:
            if not (pid := os.fork()):
                control.close()
                status = 1
                try:
                    work(files, number, answer)
                    status = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    with suppress(Exception):
                        sys.stdout.flush()
                    os._exit(status)
            workers.add(pid)
            for file in files:
                os.close(file)
            said = pid
        else:
            said = ended(number, time.monotonic() + GRACE)
            workers.discard(number)
        with suppress(BrokenPipeError, ConnectionResetError):
            control.sendall(REQUEST.pack(what, said))
    for pid in workers:
        kill(pid)
    for pid in workers:
        os.waitpid(pid, 0)


def ended(pid: int, deadline: float) -> int:
    """The exit status of a worker that is about to end, negative for a signal."""
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            kill(pid)
        time.sleep(0.001)


def kill(pid: int) -> None:
    """Kill a worker and what it has started."""
    for end in (os.killpg, os.kill):  # it may be so young that it leads no group
        with suppress(ProcessLookupError, PermissionError):
            end(pid, signal.SIGKILL)


def main() -> None:
    # This file's folder is no place for absolute imports to search.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != here]
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # who asks may ignore its children's ends
    control = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    gc.disable()  # a tenth of the time that importing takes, for what stays anyway
    # The very packages of the process that asks: keys of binaries name their versions.
    import_package("litz", os.path.dirname(os.path.dirname(here)))
    answering = answer
    try:
        import_package("triton", sys.argv[1])
        warm()
    except Exception:
        broken = b"!" + traceback.format_exc().encode()
        answering = lambda text: broken  # noqa: E731
    gc.freeze()  # collections behind compilations leave Triton's own objects alone
    gc.enable()
    fork_workers(control, answering)


if __name__ == "__main__":
    main()
