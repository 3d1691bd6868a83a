"""What an audit prints: each check where it was made, and which check caught each planted leak."""

from dtml.lookahead.audit import LONGER, SHORT, TRAIN_DAYS, ZOO_SESSIONS, ZOO_STOCKS
from flows.audit import SESSIONS, STOCKS, Audit
from flows.console import print_frame
from flows.settings import out


def print_audit(audit: Audit) -> None:
    """Print every finding, then the planted leaks, then on how much it was found and how it ended."""
    findings = audit.findings.assign(
        passed=["passed" if passed else "FAILED" for passed in audit.findings["passed"]],
        at=audit.findings["at"].dt.date,
    )
    print_frame(findings[["audited", "check", "at", "passed", "detail"]], "what was checked")
    planted = audit.proof[audit.proof["planted"]]
    print_frame(planted[["pipeline", "caught_by"]], "leaks planted on purpose, and the checks that caught them")
    out.print(
        f"found on at most {STOCKS} stocks and {SESSIONS:,} sessions of the market, leaks on {ZOO_STOCKS} and "
        f"{ZOO_SESSIONS}; trainings of one member, {SHORT} to {LONGER} epochs, at most {TRAIN_DAYS} days"
    )
    honest = audit.proof[~audit.proof["planted"]]
    out.print(
        f"{int(audit.findings['passed'].sum())} of {len(findings)} checks passed; {int(planted['caught'].sum())} of "
        f"{len(planted)} planted leaks caught; {int(honest['caught'].sum())} alarms on {len(honest)} clean pipelines"
    )
