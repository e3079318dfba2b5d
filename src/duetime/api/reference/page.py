"""The reference for people, made from the OpenAPI document: one page that loads nothing from elsewhere.

Everybody may read it, and it is large: one answer is sent in each round of the
event loop, however many clients ask at once.
"""

import asyncio
import json
from html import escape
from typing import Any

from duetime.api.openapi import build_document, encode_document
from duetime.api.reference.operations import DOCS, DOCUMENT, START
from duetime.api.server.http import Answer, Request, Route

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --accent: #2563eb; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 62rem; padding: 1.5rem; }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { background: var(--soft); border-radius: 6px; overflow-x: auto; padding: .75rem; }
table { border-collapse: collapse; width: 100%; }
td, th { border-top: 1px solid var(--line); padding: .35rem .6rem .35rem 0; text-align: left; vertical-align: top; }
section { border-top: 2px solid var(--line); margin-top: 2rem; }
nav a { display: block; } a { color: var(--accent); text-decoration: none; } a:hover { text-decoration: underline; }
.method { display: inline-block; font-weight: 600; min-width: 4rem; }
"""
#: Nothing on these pages runs or loads, and this tells the browser to enforce that.
_HEADERS = (
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'"),
    (b"x-content-type-options", b"nosniff"),
)


class Reference:
    def __init__(self) -> None:
        document = build_document()
        self._document = encode_document(document)
        self._docs = render_reference(document).encode()
        self._start = _page("duetime", _START).encode()
        self._line = asyncio.Lock()

    def routes(self) -> list[Route]:
        return [Route(DOCUMENT, self.document), Route(DOCS, self.docs), Route(START, self.start)]

    async def document(self, request: Request) -> Answer:
        await self._wait_in_line()
        return Answer(200, self._document)

    async def docs(self, request: Request) -> Answer:
        await self._wait_in_line()
        return Answer(200, self._docs, "text/html; charset=utf-8", _HEADERS)

    async def start(self, request: Request) -> Answer:
        return Answer(200, self._start, "text/html; charset=utf-8", _HEADERS)

    async def _wait_in_line(self) -> None:
        async with self._line:
            await asyncio.sleep(0)


_START = """<h1>duetime</h1>
<p>A task scheduler: hand it a task and a time.</p>
<p><a href="/docs">API reference</a> · <a href="/openapi.json">OpenAPI document</a> ·
<a href="/readyz">Is this node ready?</a></p>"""


def _page(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>'
        f"<body>{body}</body></html>"
    )


def render_reference(document: dict[str, Any]) -> str:
    schemas = document["components"]["schemas"]
    operations = [
        (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    parts = [f"<h1>duetime API</h1>{_prose(document['info']['description'])}<nav>"]
    for tag in document["tags"]:
        parts.append(f"<h3>{escape(tag['name'])}</h3>")
        parts += [
            f'<a href="#{operation["operationId"]}"><code><span class="method">{method.upper()}</span>'
            f"{escape(path)}</code> {escape(operation['summary'])}</a>"
            for method, path, operation in operations
            if tag["name"] in operation["tags"]
        ]
    parts.append("</nav>")
    parts += [_operation(method, path, operation) for method, path, operation in operations]
    parts.append("<section><h2>Types</h2>")
    parts += [_type(name, schema) for name, schema in schemas.items()]
    parts.append("</section>")
    return _page("duetime API", "".join(parts))


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    parts = [
        f'<section id="{operation["operationId"]}"><h2>{escape(operation["summary"])}</h2>',
        f"<p><code><b>{method.upper()}</b> {escape(path)}</code></p>",
        _prose(operation.get("description", "")),
    ]
    if parameters := operation.get("parameters"):
        rows = "".join(
            _row(f"{each['name']} ({each['in']})", each["schema"], each["description"], each["required"])
            for each in parameters
        )
        parts.append(f"<h4>Parameters</h4><table>{rows}</table>")
    if body := operation.get("requestBody"):
        for kind, content in body["content"].items():
            parts.append(f"<h4>Body</h4><p>{_type_text(content['schema'])} as <code>{escape(kind)}</code></p>")
            if "example" in content:
                parts.append(f"<pre>{escape(json.dumps(content['example'], indent=2, ensure_ascii=False))}</pre>")
    rows = "".join(_answer_row(status, reply) for status, reply in operation["responses"].items())
    parts.append(f"<h4>Answers</h4><table>{rows}</table></section>")
    return "".join(parts)


def _answer_row(status: str, reply: dict[str, Any]) -> str:
    if "$ref" in reply:
        name = reply["$ref"].rpartition("/")[2]
        return f'<tr><td><code>{status}</code></td><td>{escape(name)}</td><td><a href="#Problem">Problem</a></td></tr>'
    kinds = ", ".join(_type_text(content["schema"]) for content in reply.get("content", {}).values())
    return f"<tr><td><code>{status}</code></td><td>{_inline(reply['description'])}</td><td>{kinds}</td></tr>"


def _type(name: str, schema: dict[str, Any]) -> str:
    parts = [f'<h3 id="{escape(name)}">{escape(name)}</h3>', _prose(schema.get("description", ""))]
    if "enum" in schema:
        parts.append(f"<p>{_type_text(schema)}</p>")
    required = schema.get("required", [])
    rows = "".join(
        _row(field, inner, _description(inner), field in required)
        for field, inner in schema.get("properties", {}).items()
    )
    parts.append(f"<table>{rows}</table>" if rows else "")
    return "".join(parts)


def _row(name: str, schema: dict[str, Any], description: str, is_required: bool) -> str:
    default = schema.get("default")
    notes = " <b>required</b>" if is_required else ""
    notes += f" Default <code>{escape(json.dumps(default))}</code>." if default not in (None, [], {}) else ""
    words = _inline(description) + notes
    return f"<tr><td><code>{escape(name)}</code></td><td>{_type_text(schema)}</td><td>{words}</td></tr>"


def _description(schema: dict[str, Any]) -> str:
    """A field's own description, or that of the one type that it can have besides null."""
    if "description" in schema:
        return str(schema["description"])
    return next((str(each["description"]) for each in schema.get("anyOf", []) if "description" in each), "")


def _type_text(schema: dict[str, Any]) -> str:
    match schema:
        case {"$ref": str(reference)}:
            name = escape(reference.rpartition("/")[2])
            return f'<a href="#{name}">{name}</a>'
        case {"enum": list(words)}:
            return " · ".join(f"<code>{escape(str(word))}</code>" for word in words)
        case {"anyOf": list(options)}:
            return " or ".join(dict.fromkeys(_type_text(option) for option in options))
        case {"type": "array", "items": dict(items)}:
            return f"array of {_type_text(items)}"
        case {"type": str(kind), "format": str(form)} if form in ("date-time", "uuid", "uri"):
            return f"{escape(kind)} ({escape(form)})"
        case {"type": list(kinds)}:
            return " or ".join(escape(kind) for kind in kinds)
        case {"type": str(kind)}:
            return escape(kind)
        case _:
            return "any JSON"


def _prose(text: str) -> str:
    return "".join(f"<p>{_inline(part)}</p>" for part in text.split("\n\n") if part)


def _inline(text: str) -> str:
    """Text with `code` in it."""
    pieces = escape(text, quote=False).split("`")
    return "".join(f"<code>{piece}</code>" if place % 2 else piece for place, piece in enumerate(pieces))
