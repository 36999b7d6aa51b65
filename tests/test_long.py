"""Which tests wait for `make test-long`."""

from long import HERE, chosen, function, listed


def test_what_is_listed_is_there() -> None:
    gone = []
    for name in listed():
        file, test = name.split("::")
        path = HERE / file
        if not path.exists() or f"def {test}(" not in path.read_text():
            gone.append(name)
    assert not gone, "take them out of tests/long.txt"


def test_a_file_keeps_its_quickest() -> None:
    times = [("a.py::x", 0.1), ("a.py::y", 0.2), ("a.py::y", 1.5), ("b.py::z", 2.0)]
    assert chosen([*times, ("c.py::u", 6.0)]) == ["a.py::y", "c.py::u"]


def test_cases_count_for_their_function() -> None:
    assert function("tests/e2e/test_a.py::test_b[x-[3]]") == "e2e/test_a.py::test_b"
