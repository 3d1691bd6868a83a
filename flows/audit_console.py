"""What an audit prints: each check where it was made, and which check caught each planted leak."""

from flows.audit import Audit
from flows.console import print_frame
from flows.settings import out


def print_audit(audit: Audit) -> None:
    """Print every finding, then the planted leaks, then one line that says how it ended."""
    findings = audit.findings.assign(
        passed=["passed" if passed else "FAILED" for passed in audit.findings["passed"]],
        at=audit.findings["at"].dt.date,
    )
    print_frame(findings[["audited", "check", "at", "passed", "detail"]], "what was checked")
    planted = audit.proof[audit.proof["planted"]]
    print_frame(planted[["pipeline", "caught_by"]], "leaks planted on purpose, and the checks that caught them")
    honest = audit.proof[~audit.proof["planted"]]
    out.print(
        f"{int(audit.findings['passed'].sum())} of {len(findings)} checks passed; {int(planted['caught'].sum())} of "
        f"{len(planted)} planted leaks caught; {int(honest['caught'].sum())} alarms on {len(honest)} clean pipelines"
    )
