import psycopg
import pytest

from duetime import Context, TaskCancelled
from duetime.sdk.testing import make_context


def test_a_handler_can_be_called_with_a_context_of_ones_own(database_url: str) -> None:
    def charge(payload: dict[str, int], context: Context) -> bool:
        context.check()
        with psycopg.connect(database_url) as connection:
            return context.once(connection)

    context = make_context("charge", attempt=2, labels={"team": "a"}, timeout=5)

    assert [charge({}, context), charge({}, context)] == [True, False]
    assert (context.type, context.attempt, context.labels) == ("charge", 2, {"team": "a"})
    assert context.deadline is not None
    with pytest.raises(TaskCancelled):
        charge({}, make_context(is_cancelled=True))
