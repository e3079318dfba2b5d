"""The operations of the API on dead letters, as data."""

from duetime.api.bodies.answers import DropAnswer, RedriveAnswer
from duetime.api.bodies.pages import DeadPage
from duetime.api.bodies.requests import DropRequest, RedriveRequest
from duetime.api.operations import Confined, Operation, Parameter, Reply
from duetime.api.tasks.operations import FILTERS, PAGES, SEARCH

LIST = Operation(
    method="GET",
    path="/v1/dead",
    name="list_dead",
    confined=Confined.PART,
    tag="Dead letters",
    summary="List dead letters",
    description=f"Tasks whose attempts are used up or whose failure is permanent, latest due time first. {SEARCH}",
    parameters=(
        Parameter("state", "Only `dead` is allowed. All dead letters are in this state.", {"enum": ["dead"]}),
        *FILTERS,
        *PAGES,
    ),
    replies={200: Reply("A page.", DeadPage)},
)
REDRIVE = Operation(
    method="POST",
    path="/v1/dead/redrive",
    name="redrive_dead",
    confined=Confined.PART,
    tag="Dead letters",
    summary="Give dead letters another chance",
    description="Redriven tasks get new retry budgets and become due: all at once, or `rate` per second. Select "
    "them by ids, by filter, or all. With a filter, repeat with `next` as the cursor until it is null. "
    f"{SEARCH}",
    body=RedriveRequest,
    example={"filter": {"type": "email.send"}, "rate": 10},
    replies={200: Reply("What was done.", RedriveAnswer)},
)
DROP = Operation(
    method="POST",
    path="/v1/dead/drop",
    name="drop_dead",
    confined=Confined.PART,
    tag="Dead letters",
    summary="Drop dead letters",
    description="Dropped tasks are cancelled for good. Select them by ids, by filter, or all. With a filter, repeat "
    f"with `next` as the cursor until it is null. {SEARCH}",
    body=DropRequest,
    example={"filter": {"type": "email.send"}},
    replies={200: Reply("What was done.", DropAnswer)},
)
OPERATIONS = [LIST, REDRIVE, DROP]
