"""MLflow's client for a tracking server, as a training survives it.

MLflow uses it for http addresses by the entry point `mlflow.tracking_store`. While the server is gone, the program is
answered what it needs to go on, and stderr says that nothing is recorded; what the server refuses is still an error.
"""

import json
import os
import sys
import tempfile
import time
import uuid

# If a version of MLflow has them no more, this fails, and MLflow goes on with its own.
from mlflow.protos.service_pb2 import CreateRun, DeleteRun, SearchRuns
from mlflow.tracking._tracking_service.utils import _get_rest_store

# Seconds in which a server that gave no answer is not asked again, doubled each time: each call would wait for it.
SHORTEST, LONGEST = 10, 3600


def store(store_uri=None, artifact_uri=None, **_):
    real = _get_rest_store(store_uri)
    real._call_endpoint = Guard(store_uri, real._call_endpoint)
    return real


class Guard:
    def __init__(self, uri, call):
        self.uri, self.call = uri, call
        self.asked_again_at, self.pause = 0, SHORTEST
        # Runs that the server knows nothing of.
        self.lost = {}

    def __call__(self, api, json_body=None, *args, **kwargs):
        body = json.loads(json_body) if json_body else {}
        if body.get("run_id") not in self.lost and time.monotonic() >= self.asked_again_at:
            try:
                if api.__name__ == "CreateRun":
                    json_body = self.nested(body)
                answer = self.call(api, json_body, *args, **kwargs)
                self.pause = SHORTEST
                return answer
            except Exception as error:
                status = getattr(error, "get_http_status_code", lambda: 500)()
                if status < 500 and status != 429:
                    raise
                self.asked_again_at = time.monotonic() + self.pause
                text = " ".join(str(error).split())[:300]
                print(
                    "trainingjob: the MLflow server %s can't be used, so nothing is recorded for %d s: %s"
                    % (self.uri, self.pause, text),
                    file=sys.stderr,
                )
                self.pause = min(2 * self.pause, LONGEST)
        return self.pretend(api.__name__, kwargs.get("response_proto") or api.Response(), body)

    def nested(self, body):
        """The request for a run, which stands below the run of its search if it is a trial's."""
        tags = {tag.get("key"): tag.get("value") for tag in body.get("tags", [])}
        if "tuning_job_uid" in tags and "mlflow.parentRunId" not in tags:
            parent = self.parent(body.get("experiment_id"), body.get("start_time"), tags)
            body["tags"].append({"key": "mlflow.parentRunId", "value": parent})
        return json.dumps(body)

    def parent(self, experiment, start, tags):
        """The run of a search: the first one that any of its trials has made."""
        name, uid = tags.get("tuning_job"), tags["tuning_job_uid"]
        which = {
            "experiment_ids": [experiment],
            "filter": "tags.tuning_job_uid = '%s' and tags.tuning_job_run = 'true'" % uid,
            "order_by": ["attributes.start_time ASC", "attributes.run_id ASC"],
            "max_results": 1,
        }

        def first():
            runs = self.call(SearchRuns, json.dumps(which)).runs
            return runs[0].info.run_id if runs else None

        known = first()
        if known:
            return known
        made = {"mlflow.runName": name, "tuning_job": name, "tuning_job_uid": uid, "tuning_job_run": "true"}
        made = [{"key": key, "value": value} for key, value in made.items()]
        request = {"experiment_id": experiment, "run_name": name, "start_time": start, "tags": made}
        own = self.call(CreateRun, json.dumps(request)).run.info.run_id
        # Another trial may have made one meanwhile.
        known = first() or own
        if known != own:
            self.call(DeleteRun, json.dumps({"run_id": own}))
        return known

    def pretend(self, name, response, body):
        """The least that MLflow can work with."""
        place = os.path.join(tempfile.gettempdir(), "mlflow-not-recorded")
        if name in ("GetExperiment", "GetExperimentByName"):
            experiment = response.experiment
            experiment.experiment_id = body.get("experiment_id") or "0"
            experiment.name = body.get("experiment_name") or "Default"
            experiment.artifact_location = "file://" + place
            experiment.lifecycle_stage = "active"
        elif name == "CreateExperiment":
            response.experiment_id = "0"
        elif name == "CreateRun":
            run_id = uuid.uuid4().hex
            info = response.run.info
            info.run_id = info.run_uuid = run_id
            info.run_name = body.get("run_name") or run_id
            info.experiment_id = body.get("experiment_id") or "0"
            info.user_id = body.get("user_id") or ""
            info.status = 1
            info.start_time = int(body.get("start_time") or 0)
            info.artifact_uri = "file://%s/%s" % (place, run_id)
            info.lifecycle_stage = "active"
            for tag in body.get("tags", []):
                response.run.data.tags.add(key=tag.get("key", ""), value=tag.get("value", ""))
            self.lost[run_id] = response.run
        elif name in ("GetRun", "UpdateRun"):
            run_id = body.get("run_id") or ""
            known = self.lost.get(run_id)
            info = response.run.info if name == "GetRun" else response.run_info
            if known is None:
                info.run_id = info.run_uuid = run_id
                info.status = 1
                info.lifecycle_stage = "active"
            elif name == "GetRun":
                response.run.CopyFrom(known)
            else:
                info.CopyFrom(known.info)
        return response
