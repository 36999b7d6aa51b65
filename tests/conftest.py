"""What the environment says before any test imports: Triton decides at import whether kernels are
interpreted, and OpenMP how its threads wait."""

import gc
import importlib
import logging
import os

import pytest
from long import function, listed

os.environ.setdefault("TRITON_INTERPRET", "1")
# Every compiled graph of a test checks what it hands to operators of ATen.
os.environ.setdefault("LITZ_CHECK_CALLS", "1")
# Threads of several workers share the cores: one that spins while it waits keeps another out.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Workers are many enough: each runs one compiler at a time, on one source a graph.
os.environ.setdefault("LITZ_JOBS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that take long are marked: ``make test`` leaves them to ``make test-long``."""
    long = listed()
    for item in items:
        if function(item.nodeid) in long:
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session", autouse=True)
def what_is_compiled_too_often_is_an_error() -> None:
    """Functions of one code, compiled anew for each case, else run eagerly from the ninth on."""
    importlib.import_module("torch._dynamo").config.fail_on_recompile_limit_hit = True


@pytest.fixture(scope="session", autouse=True)
def nothing_for_logs_alone() -> None:
    """What PyTorch does in each compilation for logs that nobody reads.

    It times the guards, and empties the processor's cache first, which takes as long as all the
    rest of a small compilation.  It writes a trace where its logger has handlers, and pytest
    gives some to each logger that does not propagate: for all tests, before any fixture runs, and
    again for each.
    """
    if hasattr(guards := importlib.import_module("torch._dynamo.guards"), "profile_guard_manager"):
        guards.profile_guard_manager = lambda *_: 0.0
    trace = logging.getLogger("torch.__trace")
    trace.propagate = True
    trace.handlers.clear()


@pytest.fixture(scope="session", autouse=True)
def modules_are_no_garbage() -> None:
    """Collections pass over what is imported: half a million objects took a tenth of the time."""
    importlib.import_module("litz.backend")
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)  # a small compilation makes more objects than 700
