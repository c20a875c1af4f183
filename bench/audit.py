"""What the API server's audit log says: the requests of each client, and when each job's children appeared."""

import collections
import json
import math
from datetime import datetime


class Event:
    __slots__ = ("begun", "code", "done", "ended", "failed", "kind", "made", "name", "namespace", "owner", "running",
                 "verb", "what", "who")

    def __init__(self, entry):
        ref, body = entry.get("objectRef") or {}, entry.get("requestObject")
        body = body if isinstance(body, dict) else {}
        meta, sub = body.get("metadata") or {}, ref.get("subresource")
        self.begun, self.done = time(entry["requestReceivedTimestamp"]), time(entry["stageTimestamp"])
        user = entry["user"]["username"]
        self.who = user.rsplit(":", 1)[1] if user.startswith("system:serviceaccount:") else user
        self.verb, self.what = entry["verb"], ref.get("resource", "") + (f"/{sub}" if sub else "")
        self.name, self.namespace = ref.get("name") or meta.get("name") or "", ref.get("namespace", "")
        self.code, self.kind = (entry.get("responseStatus") or {}).get("code", 0), body.get("kind")
        # server-side apply shows up as a patch with code 201
        self.made = self.code == 201 and self.verb in ("create", "patch") and not sub
        phase = (body.get("status") or {}).get("phase") if self.what == "pods/status" and self.code == 200 else None
        self.running, self.ended, self.failed = phase == "Running", phase == "Succeeded", phase == "Failed"
        owners = meta.get("ownerReferences") or []
        owner = next((o for o in owners if o.get("controller")), owners[0] if owners else None)
        self.owner = (owner["kind"], owner["name"]) if owner else None

    @property
    def upkeep(self):
        """What an operator may ask for while nothing happens."""
        return self.verb == "watch" or self.what == "leases"

    @property
    def writes(self):
        return self.verb not in ("get", "list") and not self.upkeep


class Audit:
    """Reads on where it stopped."""

    def __init__(self, path):
        self.file, self.rest, self.events = open(path, "rb"), b"", []  # noqa: SIM115 - it is read for as long as this lives

    def more(self):
        *lines, self.rest = (self.rest + self.file.read()).split(b"\n")
        for line in filter(None, lines):
            entry = json.loads(line)
            # a watch counts when it starts, all else when it is answered
            if entry["stage"] == ("ResponseStarted" if entry["verb"] == "watch" else "ResponseComplete"):
                self.events.append(Event(entry))
        return self.events


def time(text):
    return datetime.fromisoformat(text).timestamp()


def requests(events):
    """Of some events: how many of each kind, and how many were refused."""
    kinds = collections.Counter(f"{e.verb} {e.what}" for e in events)
    return {"count": len(events), "kinds": dict(kinds.most_common()),
            "refused": dict(collections.Counter(f"{e.code} {e.verb} {e.what}" for e in events if e.code >= 400)),
            "busiest_second": max(collections.Counter(int(e.begun) for e in events).values(), default=0)}


def children(events, kind, names):
    """Of each job: when it was created, its children [(when, resource, by whom)], and when each pod was made."""
    jobs = {name: {"created": None, "children": [], "pods": []} for name in names}
    made = [e for e in events if e.made]
    owner = {(e.kind, e.name): e.owner for e in made if e.owner}

    def root(of):
        for _ in range(6):
            if of is None or of[0] == kind:
                return of and of[1]
            of = owner.get(of)
        return None

    for e in made:
        if e.kind == kind and e.name in jobs and not e.owner:
            jobs[e.name]["created"] = e.done
        elif (job := jobs.get(root(e.owner))) and e.what == "pods":
            job["pods"].append(e.done)
        elif job:
            job["children"].append((e.done, e.what, e.who))
    return {name: job for name, job in jobs.items() if job["created"]}


def spread(values):
    values = sorted(values)
    if not values:
        return None

    def rank(share):  # nearest rank
        return round(values[max(0, math.ceil(share * len(values)) - 1)], 4)

    return {"p50": rank(0.5), "p99": rank(0.99), "max": round(values[-1], 4)}
