"""A small server that keeps schedules as the API's contract says, and remembers what it was asked."""

import copy
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

DEFAULTS: dict[str, Any] = {
    "timezone": "UTC",
    "dst": {"gap": "shift", "overlap": "first"},
    "jitter": 0.0,
    "start_at": None,
    "end_at": None,
    "max_fires": None,
    "overlap": "skip",
    "misfire": "fire_latest",
    "misfire_threshold": 10.0,
    "catchup_window": 86400.0,
    "catchup_rate": 10,
    "pause_on_failure": False,
    "note": None,
    "origin": "api",
    "source": "",
}
TASK_DEFAULTS: dict[str, Any] = {
    "payload": None,
    "queue": "default",
    "priority": "normal",
    "target": None,
    "retry": None,
    "labels": None,
}
TASK = "0199a3c4-6f00-8123-9abc-def000000101"


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    body: Any


class ProblemFound(Exception):
    def __init__(self, status: int, code: str, detail: str, errors: list[dict[str, str]] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.problem = {"title": code, "status": status, "code": code, "detail": detail, "errors": errors or []}


class ScheduleServer:
    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.schedules: dict[str, dict[str, Any]] = {}
        self.calendars: dict[str, dict[str, Any]] = {}
        self.runs: list[dict[str, Any]] = []
        #: The states a backfill goes through, one for each look.
        self.backfill_states = ["running", "done"]
        self.page = 2
        self.url = ""

    def sent(self, method: str, path: str) -> list[Request]:
        return [each for each in self.requests if (each.method, each.path) == (method, path)]

    def add(self, name: str, **definition: Any) -> dict[str, Any]:
        """Store a schedule as if it had been there before."""
        body = {"spec": {"cron": "0 2 * * *"}, "task": {"type": "report"}, **definition}
        return self._store(name, body)

    def answer(self, request: Request) -> tuple[int, Any]:
        parts = [unquote(part) for part in request.path.split("/")[2:]]
        match [request.method, *parts]:
            case ["GET", "schedules"]:
                return 200, self._list(request.query)
            case ["POST", "schedules", "batch"]:
                return 200, self._batch(request.body["items"])
            case ["POST", "schedules", "preview"]:
                self._judge(request.body)
                return 200, self._preview(request.body)
            case [_, "schedules", name, *rest]:
                return self._one(request, name, rest)
            case ["GET", "calendars"]:
                names = sorted(name for name in self.calendars if name > request.query.get("cursor", ""))
                following = names[1] if len(names) > 2 else None
                return 200, {"items": [self.calendars[name] for name in names[:2]], "next": following}
            case ["PUT", "calendars", name]:
                self.calendars[name] = {"name": name, "dates": request.body["dates"]}
                return 201, self.calendars[name]
            case [method, "calendars", name]:
                if name not in self.calendars:
                    raise ProblemFound(404, "not_found", f"there is no calendar {name}")
                return 200, self.calendars.pop(name) if method == "DELETE" else self.calendars[name]
        raise ProblemFound(404, "not_found", "there is nothing here")

    def _one(self, request: Request, name: str, rest: list[str]) -> tuple[int, Any]:
        if request.method == "PUT":
            is_new = name not in self.schedules
            stored = self._put(name, request.body)
            return 201 if is_new else 200, self._whole(stored)
        if name not in self.schedules:
            raise ProblemFound(404, "not_found", f"there is no schedule {name}")
        schedule = self.schedules[name]
        match [request.method, *rest]:
            case ["GET"]:
                return 200, self._whole(schedule)
            case ["DELETE"]:
                del self.schedules[name]
                return 200, {"name": name, "cancelled": 3 if request.query.get("tasks") == "cancel" else 0}
            case ["POST", "pause" | "resume" as verb]:
                schedule["state"] = "paused" if verb == "pause" else "active"
                schedule["note"] = request.body.get("note")
                return 200, self._whole(schedule)
            case ["POST", "trigger"]:
                return 202, {"task": TASK, "fire_time": request.body.get("as_of") or "2030-01-01T00:00:00Z"}
            case ["POST", "backfill"]:
                return 202, {"id": 1, "rate": 10, "state": "running", "created_count": 0, **request.body}
            case ["GET", "backfills"]:
                return 200, {"items": [self._backfill("done")]}
            case ["GET", "backfills", _]:
                states = self.backfill_states
                return 200, self._backfill(states.pop(0) if len(states) > 1 else states[0])
            case ["POST", "backfills", _, "cancel"]:
                return 200, self._backfill("cancelled")
            case ["GET", "runs"]:
                return 200, {"items": self.runs, "next": None}
            case ["GET", "preview"]:
                return 200, self._preview(request.query)
        raise ProblemFound(404, "not_found", "there is nothing here")

    def _backfill(self, state: str) -> dict[str, Any]:
        return {
            "id": 1,
            "from": "2026-01-01T00:00:00Z",
            "to": "2026-01-03T00:00:00Z",
            "rate": 10,
            "state": state,
            "created_count": 48,
            "reached": "2026-01-02T00:00:00Z",
            "created_at": "2026-02-01T00:00:00Z",
            "ended_at": None if state == "running" else "2026-02-01T00:00:05Z",
        }

    def _list(self, query: dict[str, str]) -> dict[str, Any]:
        fits = [
            each
            for name, each in sorted(self.schedules.items())
            if all(each.get(key) == query[key] for key in ("state", "origin", "source") if key in query)
            and name.startswith(query.get("prefix", ""))
        ]
        start = int(query.get("cursor", 0))
        end = start + min(self.page, int(query.get("limit", 50)))
        return {"items": fits[start:end], "next": str(end) if end < len(fits) else None}

    def _batch(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        results: list[dict[str, Any]] = []
        for item in items:
            before = copy.deepcopy(self.schedules.get(item["name"]))
            try:
                stored = self._put(item["name"], {key: value for key, value in item.items() if key != "name"})
            except ProblemFound as error:
                results.append({"name": item["name"], "error": error.problem})
                continue
            word = "created" if before is None else "changed"
            results.append({"name": item["name"], "version": stored["version"], "result": word})
        rejected = sum("error" in each for each in results)
        return {"results": results, "accepted": len(results) - rejected, "rejected": rejected}

    def _judge(self, body: dict[str, Any]) -> None:
        cron = body["spec"].get("cron")
        if cron is not None and any(len(line.split()) != 5 for line in ([cron] if isinstance(cron, str) else cron)):
            message = f"{cron!r} is not a cron line of five fields"
            raise ProblemFound(422, "invalid", f"spec.cron: {message}", [{"path": "spec.cron", "message": message}])

    def _put(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        self._judge(body)
        before = self.schedules.get(name)
        owner = (body.get("origin", "api"), body.get("source", ""))
        if before is not None and (before["origin"], before["source"]) != owner and not body.get("force"):
            raise ProblemFound(409, "other_origin", f"schedule {name} belongs to origin {before['origin']}")
        return self._store(name, body)

    def _store(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        body = {key: value for key, value in body.items() if key not in ("force", "version")}
        before = self.schedules.get(name)
        self.schedules[name] = {
            **copy.deepcopy(DEFAULTS),
            **body,
            "task": {**TASK_DEFAULTS, **body["task"]},
            "name": name,
            "state": "paused" if body.get("paused") else "active",
            "version": before["version"] + 1 if before else 1,
            "counters": {"fired": 12, "skipped": 1, "missed": 0, "buffered": 0},
            "buffered_now": 0,
            "last_skip": {"at": "2026-01-01T00:00:00Z", "fire_time": "2026-01-01T00:00:00Z", "reason": "overlap"},
            "created_at": "2026-01-01T00:00:00Z",
            "updated_at": "2026-01-01T00:00:00Z",
        }
        return self.schedules[name]

    def _whole(self, schedule: dict[str, Any]) -> dict[str, Any]:
        fires = [{"at": "2030-01-01T01:00:00Z", "local": "2030-01-01T02:00:00+01:00", "note": None}]
        return {**schedule, "words": "every day at 02:00", "next_fires": fires}

    def _preview(self, asked: dict[str, Any]) -> dict[str, Any]:
        fires = [
            {"at": f"2030-01-{day:02}T01:00:00Z", "local": f"2030-01-{day:02}T02:00:00+01:00", "note": None}
            for day in range(1, int(asked.get("count", 5)) + 1)
        ]
        fires[0] |= {"excluded": True, "note": "calendar holidays"}
        return {"words": "every day at 02:00", "fires": fires}


@contextmanager
def running() -> Iterator[ScheduleServer]:
    server = ScheduleServer()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Headers and body in one packet: the second would wait for an acknowledgement of the first.
        wbufsize = 1 << 16

        def handle_any(self) -> None:
            parts = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            request = Request(self.command, parts.path, dict(parse_qsl(parts.query)), body)
            server.requests.append(request)
            try:
                status, found = server.answer(request)
            except ProblemFound as error:
                status, found = error.status, error.problem
            said = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        do_GET = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    server.url = f"http://127.0.0.1:{httpd.server_port}"
    try:
        yield server
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()
