"""Which users' files the audit admits: python -m benchmarks.own_code_admission [SECONDS |
EXAMPLES].

Asks for the forty leaks and the thirty honest ideas of the tests, on a simulated market of 60
stocks and four years, and prints each that is judged wrongly; with `SECONDS`, each judgement, its
reason and its time. Then, with `EXAMPLES` alone, the time of an admission of each example of
`dtml/own/README.md`: the median of three by the processor, this process and those that it asks.
"""

import os
import re
import statistics
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from dtml.lookahead.pipeline import History
from tests.support.own_code_ideas import IDEAS
from tests.support.own_code_leaks import LEAKS
from tests.support.own_code_market import large_market, refusal

PAGE = Path(__file__).parents[1] / "dtml" / "own" / "README.md"
TIMES = 3
SHOWN = 150  # letters of a reason


def processor() -> float:
    """Return the processor's seconds so far of this process, of those it started and of theirs.

    What is read is the accounting of Linux.
    """
    ticks = 0
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended
            fields = file.read_text().rpartition(")")[2].split()
            if str(os.getpid()) in (file.parent.name, fields[1]):
                ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def judged(text: str, past: History) -> tuple[str, float]:
    """Return why a file is refused, nothing where it is admitted, and the processor's seconds."""
    begun = processor()
    why = refusal(text, past)
    return why, processor() - begun


def count_refused(
    files: Mapping[str, str], past: History, *, leaks: bool
) -> tuple[int, list[float]]:
    """Return how many files are refused and the seconds of each; print those judged wrongly."""
    refused, seconds = 0, []
    for name, text in files.items():
        why, took = judged(text, past)
        refused += bool(why)
        seconds.append(took)
        if bool(why) != leaks or "SECONDS" in sys.argv[1:]:
            print(f"    {name}: {f'refused: {why[:SHOWN]}' if why else 'admitted'} ({took:.1f} s)")
    return refused, seconds


def judge_all(past: History) -> None:
    """Print how many leaks are refused and how many ideas are admitted."""
    for kind, files in LEAKS.items():
        refused, seconds = count_refused(files, past, leaks=True)
        each = statistics.median(seconds)
        print(f"{kind}: {refused} of {len(files)} leaks refused, {each:.1f} s each", flush=True)
    refused, seconds = count_refused(IDEAS, past, leaks=False)
    admitted, each = len(IDEAS) - refused, statistics.median(seconds)
    print(f"honest: {admitted} of {len(IDEAS)} ideas admitted, {each:.1f} s each", flush=True)


def time_examples(past: History) -> None:
    """Print the processor's seconds that an admission of each example of the page takes."""
    text = PAGE.read_text(encoding="utf-8")
    for name, example in re.findall(
        r"^```python\n# (.*?)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE
    ):
        found = [judged(example, past) for _ in range(TIMES)]
        seconds = statistics.median(took for _, took in found)
        print(f"{name}: {found[0][0][:SHOWN] or 'admitted'}, {seconds:.1f} s", flush=True)


def main() -> None:
    """Print what is refused, what is admitted and how long it takes."""
    past = large_market()
    judged(next(iter(IDEAS.values())), past)  # the first one waits for imports
    if "EXAMPLES" not in sys.argv[1:]:
        judge_all(past)
    time_examples(past)


if __name__ == "__main__":
    with TemporaryDirectory() as home:  # for the leaks that keep files
        os.environ |= {"HOME": home, "TMPDIR": home}
        main()
