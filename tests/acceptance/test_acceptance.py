"""What a user sees of a small life: six nights, a backtest, a ranking walk and a translation.

It knows nothing of the inside. After a wanted change, `python -m tests.acceptance` makes the record
anew and prints what changed.
"""

import pytest

from tests.acceptance.record import differences, here, live, read


@pytest.mark.slow
def test_what_a_user_sees_is_what_it_was(tmp_path, prefect_api):
    made_with, facts = read()
    found = differences(facts, live(tmp_path, prefect_api), is_exact=made_with == here())
    assert not (changed := list(found)), "\n".join(changed)
