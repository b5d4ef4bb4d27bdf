"""What the proof prints and when it fails: an unlisted failure, a part that raises, nothing that ran at all."""

from pathlib import Path

from tests.conformance import franz_go
from tests.proof.part import Done, Part, Results, Run, Skip, perform
from tests.proof.parts import PARTS, tortured
from tests.proof.summary import failures, line, totals

EXPECTED = {"suite": {"known*": "their test asks for what only two brokers have"}}


def done(results, skipped=""):
    return Done(Part("suite", "conformance", lambda run: results), results, 1.5, skipped)


def test_a_failure_fails_unless_it_is_listed_for_that_part():
    good = done(Results(["a", "b"], {"known[1]": "boom"}, ["c"]))
    assert totals([good], EXPECTED) == ("2 passed, 0 failed", True)
    assert line(good, EXPECTED).endswith("1.5 s  2 passed, 1 failed as expected, 1 skipped")
    assert failures(good, EXPECTED) == ["      known[1]: expected: their test asks for what only two brokers have"]
    bad = done(Results(["a"], {"new": "boom\n  at x", "known2": ""}))
    assert totals([good, bad], EXPECTED) == ("3 passed, 1 failed", False)
    assert line(bad, EXPECTED).startswith("FAIL")
    assert failures(bad, EXPECTED)[0] == "      new: boom at x"
    assert totals([good], {"another": {"known*": "x"}})[1] is False


def test_what_cannot_run_is_no_failure_and_no_success(tmp_path):
    def without(run):
        raise Skip("kcat is not installed")

    def broken(run):
        raise OSError("no")

    run = Run(1, tmp_path, tmp_path / "log")
    skipped = perform(Part("suite", "conformance", without), run)
    assert "kcat is not installed" in line(skipped, {})
    assert totals([skipped], {}) == ("0 passed, 0 failed", False)  # nothing was proved
    failed = perform(Part("suite", "conformance", broken), run)
    assert totals([failed], {}) == ("0 passed, 1 failed", False)
    assert "OSError: no" in Path(run.log).read_text()


def test_a_torture_that_fails_is_named_by_its_seed():
    results = Results()
    tortured(1, "seed 42\nround 1: fine\nAssertionError: lost\n", ["round 1"], results)
    assert list(results.failed) == ["seed 42"] and "lost" in results.failed["seed 42"] and not results.passed
    results = Results()
    tortured(0, "seed 42\nround 1: fine\n1 rounds: every promise kept\n", ["round 1"], results)
    assert (results.passed, results.note) == (["round 1"], "round 1: fine")


def test_franz_gos_output_is_read_test_by_test():
    said = """\
=== RUN   TestOne
=== PAUSE TestOne
=== RUN   TestTwo
--- SKIP: TestTwo (0.00s)
=== RUN   TestThree
=== CONT  TestOne
    a_test.go:3: it broke
=== NAME  TestThree
    b_test.go:4: only said
--- FAIL: TestOne (0.10s)
    --- FAIL: TestOne/part (0.10s)
--- PASS: TestThree (0.20s)
"""
    results = Results()
    franz_go.read(said, results)
    assert (results.passed, results.skipped) == (["TestThree"], ["TestTwo"])
    assert results.failed == {"TestOne": "a_test.go:3: it broke"}


def test_every_part_has_a_name_of_its_own():
    names = [part.name for part in PARTS]
    assert len(names) == len(set(names)) >= 18
