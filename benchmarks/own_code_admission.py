"""Count which users' files the audit admits, and time the admissions.

`python -m benchmarks.own_code_admission [SECONDS | EXAMPLES]`: audits the forty leaks and the
thirty honest ideas of the tests, on a simulated market of 60 stocks and four years, and prints each
that is judged wrongly; with `SECONDS`, each judgement, its reason and its time. Then, or with
`EXAMPLES` only, it prints the time of an admission of each example of `dtml/own/README.md`: the
median of three, in seconds of the processor, of this process and of those that it starts.
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
from tests.support.own_code_ideas import FILES
from tests.support.own_code_leaks import LEAKS
from tests.support.own_code_market import large_market, refusal

PAGE = Path(__file__).parents[1] / "dtml" / "own" / "README.md"
# A block of Python on the page, whose first line is a comment that names it.
EXAMPLE = re.compile(r"^```python\n# (.*?)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TIMES = 3
SHOWN = 150  # letters of a reason


def processor() -> float:
    """Return the processor seconds so far of this process, its children and their children.

    They are read from Linux's accounting.
    """
    ticks = 0
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended
            fields = file.read_text().rpartition(")")[2].split()
            parent = fields[1]
            if str(os.getpid()) in (file.parent.name, parent):
                ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def judged(text: str, past: History) -> tuple[str, float]:
    """Return why a file is refused, '' where it is admitted, and the processor seconds."""
    start = processor()
    reason = refusal(text, past)
    return reason, processor() - start


def count_refused(
    files: Mapping[str, str], past: History, *, leaks: bool
) -> tuple[int, list[float]]:
    """Return how many files are refused and the seconds of each; print those judged wrongly."""
    refused = 0
    seconds = []
    for name, text in files.items():
        reason, file_seconds = judged(text, past)
        is_refused = bool(reason)
        refused += is_refused
        seconds.append(file_seconds)
        if is_refused != leaks or "SECONDS" in sys.argv[1:]:
            verdict = f"refused: {reason[:SHOWN]}" if is_refused else "admitted"
            print(f"    {name}: {verdict} ({file_seconds:.1f} s)")
    return refused, seconds


def judge_all(past: History) -> None:
    """Print how many leaks are refused and how many ideas are admitted."""
    for kind, files in LEAKS.items():
        refused, seconds = count_refused(files, past, leaks=True)
        median = statistics.median(seconds)
        print(f"{kind}: {refused} of {len(files)} leaks refused, {median:.1f} s each", flush=True)
    refused, seconds = count_refused(FILES, past, leaks=False)
    admitted = len(FILES) - refused
    median = statistics.median(seconds)
    print(
        f"honest: {admitted} of {len(FILES)} files admitted, {median:.1f} s each",
        flush=True,
    )


def time_examples(past: History) -> None:
    """Print the processor seconds of an admission of each example of the page."""
    for name, example in EXAMPLE.findall(PAGE.read_text(encoding="utf-8")):
        judgements = [judged(example, past) for _ in range(TIMES)]
        reason, _ = judgements[0]
        median = statistics.median(seconds for _, seconds in judgements)
        print(f"{name}: {reason[:SHOWN] or 'admitted'}, {median:.1f} s", flush=True)


def main() -> None:
    """Print what is refused, what is admitted and how long it takes."""
    past = large_market()
    # The first judgement waits for imports, and is not timed.
    first_idea = next(iter(FILES.values()))
    judged(first_idea, past)
    if "EXAMPLES" not in sys.argv[1:]:
        judge_all(past)
    time_examples(past)


if __name__ == "__main__":
    with TemporaryDirectory() as home:  # for the leaks that keep files
        os.environ |= {"HOME": home, "TMPDIR": home}
        main()
