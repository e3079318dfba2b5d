"""Read CronJobs of Kubernetes and convert them to schedules.

Parts of a manifest for which a schedule has no field are reported by their
paths, so that nothing is lost without notice.  No I/O.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from duetime.cli.schedules.crontab import MACROS, Imported
from duetime.cli.schedules.documents import Document
from duetime.cli.schedules.names import Names, slug

_OVERLAPS = {"Allow": "allow", "Forbid": "skip", "Replace": "terminate_other"}
_LEAST_WINDOW_SECONDS = 10
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,62}")
_ZONE = re.compile(r"(?:CRON_)?TZ=(\S+)\s+(.*)")

#: Fields that are converted or have no meaning outside of Kubernetes. All others are reported.
_KNOWN: dict[str, tuple[str, ...]] = {
    "": ("apiVersion", "kind", "metadata", "spec", "status"),
    "metadata": (
        *("name", "namespace", "labels", "annotations", "creationTimestamp", "generation", "managedFields"),
        *("resourceVersion", "uid", "selfLink", "ownerReferences", "finalizers"),
    ),
    "spec": ("schedule", "timeZone", "concurrencyPolicy", "startingDeadlineSeconds", "suspend", "jobTemplate"),
    "spec.jobTemplate": ("metadata", "spec"),
    "spec.jobTemplate.spec": ("backoffLimit", "activeDeadlineSeconds", "template"),
    "spec.jobTemplate.spec.template": ("metadata", "spec"),
    "spec.jobTemplate.spec.template.spec": (
        *("containers", "restartPolicy", "dnsPolicy", "schedulerName", "terminationGracePeriodSeconds"),
    ),
}
_KNOWN_OF_CONTAINER = (
    *("name", "image", "command", "args", "imagePullPolicy", "terminationMessagePath", "terminationMessagePolicy"),
)
_CARRIED_OF_CONTAINER = ("name", "image", "command", "args")


@dataclass(frozen=True)
class CronJobOptions:
    timezone: str = "UTC"
    task_type: str = "kubernetes.job"
    queue: str | None = None


class _Skipped(Exception):
    """A CronJob that is not converted, with the reason."""


def defaults_of(options: CronJobOptions) -> dict[str, object]:
    task: dict[str, object] = {"type": options.task_type}
    if options.queue is not None:
        task["queue"] = options.queue
    return {"timezone": options.timezone, "task": task}


def import_cronjobs(documents: Sequence[Document], options: CronJobOptions) -> Imported:
    found = Imported()
    names = Names()
    for document, manifest in _manifests(documents):
        title = _title(manifest)
        if manifest.get("kind") != "CronJob":
            found.report.append(f"{document.name}: {title} is not a CronJob: not carried over")
            continue
        try:
            definition = _definition(manifest, title, options, found.report)
        except _Skipped as reason:
            found.report.append(f"{title}: {reason}; not carried over")
            continue
        metadata = _mapping(manifest.get("metadata"))
        namespace, name = str(metadata.get("namespace") or ""), str(metadata.get("name") or "")
        wanted = slug(name) or "cronjob"
        if wanted in found.schedules and namespace:
            wanted = slug(f"{namespace}-{name}")
        found.schedules[names.take(wanted, _fingerprint(namespace, name))] = definition
    return found


def _manifests(documents: Sequence[Document]) -> Iterator[tuple[Document, dict[str, object]]]:
    """Yield every object, also those in lists."""
    left = [(document, document.value) for document in documents]
    while left:
        document, value = left.pop(0)
        if value is None:
            continue
        if not isinstance(value, dict) or "kind" not in value:
            raise document.error((), "is not a manifest of Kubernetes, which has `kind:` at its top")
        items = value.get("items")
        if str(value["kind"]).endswith("List") and isinstance(items, list):
            # Items of a CronJobList do not repeat their kind.
            kind = str(value["kind"]).removesuffix("List")
            left[:0] = [
                (document, {"kind": kind, **item} if kind and isinstance(item, dict) else item) for item in items
            ]
        else:
            yield document, value


def _definition(
    manifest: dict[str, object], title: str, options: CronJobOptions, report: list[str]
) -> dict[str, object]:
    spec = _mapping(manifest.get("spec"))
    template = _mapping(spec.get("jobTemplate"))
    work = _mapping(template.get("spec"))
    pod = _mapping(_mapping(work.get("template")).get("spec"))
    timing, zone = _timing(spec)
    lost = list(_lost(manifest, ()))

    definition: dict[str, object] = {"spec": timing}
    if zone is not None and zone != options.timezone:
        definition["timezone"] = zone
    policy = spec.get("concurrencyPolicy") or "Allow"
    if policy not in _OVERLAPS:
        raise _Skipped(f"concurrencyPolicy {policy} is not known")
    definition["overlap"] = _OVERLAPS[str(policy)]
    if (seconds := _number(spec, "startingDeadlineSeconds")) is not None:
        definition["misfire"] = "fire_latest"
        definition["catchup_window"] = max(_LEAST_WINDOW_SECONDS, seconds)
        if seconds < _LEAST_WINDOW_SECONDS:
            report.append(f"{title}: startingDeadlineSeconds {seconds} became {_LEAST_WINDOW_SECONDS}, the least")
    if spec.get("suspend") is True:
        definition["paused"] = True
    definition["task"] = _task(manifest, work, pod, title, report)
    if lost:
        report.append(f"{title}: not carried over: {', '.join(lost)}")
    return definition


def _timing(spec: dict[str, object]) -> tuple[dict[str, object], str | None]:
    schedule = spec.get("schedule")
    if not isinstance(schedule, str) or not schedule.strip():
        raise _Skipped("spec.schedule is missing")
    text, zone = " ".join(schedule.split()), spec.get("timeZone")
    if (prefixed := _ZONE.fullmatch(text)) is not None:
        zone, text = zone or prefixed[1], prefixed[2]
    if text.lower().startswith("@every "):
        return {"every": text.split(None, 1)[1].replace(" ", "")}, str(zone) if zone else None
    cron = MACROS.get(text.lower(), text)
    if len(cron.split()) != 5:
        raise _Skipped(f"spec.schedule {schedule} is not a cron line of five fields")
    return {"cron": cron}, str(zone) if zone else None


def _task(
    manifest: dict[str, object], work: dict[str, object], pod: dict[str, object], title: str, report: list[str]
) -> dict[str, object]:
    metadata = _mapping(manifest.get("metadata"))
    containers = pod.get("containers")
    if not isinstance(containers, list) or not containers:
        raise _Skipped("it has no containers")
    payload: dict[str, object] = {}
    if metadata.get("namespace"):
        payload["namespace"] = metadata["namespace"]
    payload["containers"] = [
        {name: container[name] for name in _CARRIED_OF_CONTAINER if name in container}
        for container in map(_mapping, containers)
    ]
    task: dict[str, object] = {"payload": payload}
    if (limit := _number(work, "backoffLimit")) is not None:
        task["retry"] = {"max_attempts": limit + 1}
    if (seconds := _number(work, "activeDeadlineSeconds")) is not None:
        task["timeout"] = seconds
    labels = {}
    for name, value in _mapping(metadata.get("labels")).items():
        if _LABEL.fullmatch(name) and isinstance(value, str):
            labels[name] = value
        else:
            report.append(f"{title}: the label {name} is not carried over: its name is too long, or its value no text")
    if labels:
        task["labels"] = labels
    return task


def _lost(value: object, path: tuple[str, ...]) -> Iterator[str]:
    """The paths of everything that has no place in a schedule."""
    known = _KNOWN.get(".".join(path), ())
    for key, inner in _mapping(value).items():
        place = (*path, key)
        if key not in known:
            yield ".".join(place)
        elif ".".join(place) in _KNOWN and "metadata" not in place[1:]:
            yield from _lost(inner, place)
        elif key == "metadata" and path:
            yield from (".".join((*place, name)) for name in ("labels", "annotations") if name in _mapping(inner))
        elif key == "containers" and isinstance(inner, list):
            for number, container in enumerate(inner):
                for name in _mapping(container):
                    if name not in _KNOWN_OF_CONTAINER:
                        yield f"{'.'.join(place)}[{number}].{name}"


def _number(fields: dict[str, object], name: str) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _Skipped(f"{name} is not a number from 0 on")
    return value


def _mapping(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _title(manifest: dict[str, object]) -> str:
    metadata = _mapping(manifest.get("metadata"))
    place = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
    return f"{manifest.get('kind')} {place}{metadata.get('name') or '(without a name)'}"


def _fingerprint(namespace: str, name: str) -> str:
    return hashlib.sha256(f"{namespace}\n{name}".encode("utf-8", "surrogateescape")).hexdigest()
