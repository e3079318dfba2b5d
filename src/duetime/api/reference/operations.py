"""The pages for people, and the OpenAPI document itself, as data."""

from typing import Any

from duetime.api.operations import Operation, Reply

DOCUMENT = Operation(
    method="GET",
    path="/openapi.json",
    name="openapi",
    tag="Server",
    summary="Get this document",
    replies={200: Reply("The OpenAPI document.", dict[str, Any])},
    needs_key=False,
)
DOCS = Operation(
    method="GET",
    path="/docs",
    name="docs",
    tag="Server",
    summary="Show the API reference as a web page",
    replies={200: Reply("A page.", content_type="text/html")},
    needs_key=False,
)
START = Operation(
    method="GET",
    path="/",
    name="start",
    tag="Server",
    summary="Show the start page",
    replies={200: Reply("A page.", content_type="text/html")},
    needs_key=False,
)
OPERATIONS = [DOCUMENT, DOCS, START]
