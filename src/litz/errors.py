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


class VerifyError(LitzError):
    """A program broke one of the IR's rules; always a bug in Litz."""


class ToolchainError(LitzError):
    """The C++ compiler is missing or refused a source."""
