"""Errors that users see.  Each says what failed, where in their code, and what to do."""

from __future__ import annotations


class LitzError(Exception):
    """Base of every error that Litz raises on purpose."""


class CompilationError(LitzError):
    """Litz could not compile a graph.

    Carries the op, the line of user code it came from and the folder of a stand-alone repro.
    """

    def __init__(
        self,
        message: str,
        *,
        op: str | None = None,
        user_stack: str | None = None,
        repro: str | None = None,
    ) -> None:
        self.message = message
        self.op = op
        self.user_stack = user_stack
        self.repro = repro
        parts = [message]
        if op:
            parts.append(f"  op: {op}")
        if user_stack:
            parts.append("  in your code:\n" + user_stack.rstrip())
        if repro:
            parts.append(f"  repro: python {repro}")
        parts.append(
            "  To go on without Litz for such graphs: "
            'torch.compile(..., backend="litz", options={"on_error": "eager"})'
        )
        super().__init__("\n".join(parts))


class OptionError(LitzError, ValueError):
    """An unknown option or a value of the wrong kind."""


class OutOfRangeError(LitzError, IndexError, RuntimeError):
    """A position outside of a tensor.  Eager raises one or the other, by the operator."""


class SecondGradientError(LitzError, RuntimeError):
    """Gradients of a compiled program were differentiated, and it cannot run again for that."""


class VerifyError(LitzError):
    """A program broke one of the IR's rules; always a bug in Litz."""


class VerificationError(LitzError):
    """A run under ``options={"verify": True}`` went wrong; always a bug in Litz.

    kernel: the compiled kernel, or the operator that ATen ran.  nodes: the graph nodes it computes.
    ir: the kernel's text with a mark.  inputs, repro: paths of the saved inputs and of a Python
    file that shows the fault from them.
    """

    def __init__(
        self,
        message: str,
        *,
        kernel: str,
        nodes: tuple[str, ...],
        detail: str,
        others: tuple[str, ...] = (),
        user_stack: str = "",
        ir: str = "",
        inputs: str | None = None,
        repro: str | None = None,
    ) -> None:
        self.message, self.kernel, self.nodes, self.detail = message, kernel, nodes, detail
        self.others, self.user_stack, self.inputs, self.repro = others, user_stack, inputs, repro
        self.ir = ir
        parts = [message, f"  {detail}"]
        if others:
            parts.append(f"  wrong too: {', '.join(others)}")
        if nodes:
            parts.append(f"  graph nodes: {', '.join(nodes)}")
        if user_stack:
            parts.append("  in your code:\n" + user_stack.rstrip())
        if ir:
            parts.append("  what it computes:\n" + ir)
        if inputs:
            parts.append(f"  inputs: {inputs}")
        if repro:
            parts.append(f"  repro: python {repro}")
        super().__init__("\n".join(parts))


class ToolchainError(LitzError):
    """Kernels cannot be built or loaded on this machine: no compiler, no room, a killed process."""


class RefusedSourceError(ToolchainError):
    """A compiler, C++ or Triton, works and refused a source: always a bug in Litz."""


class ArtifactError(LitzError):
    """Bytes that are no artifact of this version, or an artifact that cannot leave its process."""


class RanksDiffer(LitzError):  # noqa: N818 - what happened
    """Processes that are to run one program would communicate otherwise, and wait for ever."""


class PackageError(LitzError):
    """A program that cannot be packaged, a package that cannot be loaded, or a call of one that
    it was not made for."""


# --- what sends a graph to ATen; users do not see them -------------------------------------------


class GraphUnsupported(Exception):
    """The graph holds something Litz has no value for; it runs as it is, and the text says why."""


class Unsupported(Exception):
    """A lowering declines this call; the op becomes an extern, and the text says why."""


class WrongMetadata(GraphUnsupported):
    """PyTorch promises what an operator does not give; its backward graph is promised it too."""


class EagerOnly(GraphUnsupported):
    """PyTorch's graph does not say what eager does; only Dynamo's own graph does."""
