"""``torch_compile_backend="litz"`` in transformers' Trainer, through its package accelerate.

accelerate knows backends by a list of its own and refuses all others.  Without this module a model
is compiled before it is given to the Trainer: ``model.compile(backend="litz")``.
"""

from __future__ import annotations

NAME = "LITZ"


def allow() -> None:
    """Add Litz to the list of this process.  Raises ImportError without the package accelerate."""
    from accelerate.utils import DynamoBackend

    known = DynamoBackend._value2member_map_
    if NAME not in known:
        member = str.__new__(DynamoBackend, NAME)
        member._name_ = member._value_ = NAME
        known[NAME] = member
