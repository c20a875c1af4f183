"""The provisioner of the StorageClass `standard`: a claim becomes a world-writable folder of the state folder.

Every node of a cluster sees the same disk, so all access modes are true. A folder goes with its claim
(reclaimPolicy Delete) and has no quota: the size is what was asked for, nothing holds it to that.
"""

import http.client
import json
import os
import shutil
import sys
import threading
import time

from .api import Api
from .host import Failure

PROVISIONER = "devcluster.trainingjob/folder"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
CLAIMS = "/api/v1/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
STANDARD = {
    "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
    "metadata": {"name": "standard", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    "provisioner": PROVISIONER, "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate",
    "allowVolumeExpansion": False,
}


def serve(cluster):
    """Runs until it is ended. Watches wake it; what it does follows from lists alone, so a lost event harms nothing."""
    api = Api(json.loads((cluster.pki / "devcluster.kubeconfig").read_text()))
    changed = threading.Event()
    changed.set()
    for path in (CLAIMS, VOLUMES):
        threading.Thread(target=watch, args=(api, path, changed), daemon=True).start()
    while True:
        changed.wait(timeout=60)
        changed.clear()
        try:
            converge(api, cluster.dir / "volumes")
        except (OSError, Failure) as error:
            print(f"will try again: {error}", file=sys.stderr, flush=True)
            time.sleep(1)
            changed.set()


def converge(api, folder):
    ours = {name for name, storage_class in ((item["metadata"]["name"], item) for item in
            api.get(CLASSES)["items"]) if storage_class["provisioner"] == PROVISIONER}
    volumes = {item["metadata"]["name"]: item for item in api.get(VOLUMES)["items"]}
    for claim in api.get(CLAIMS)["items"]:
        name = f"pvc-{claim['metadata']['uid']}"
        spec = claim["spec"]
        if spec.get("storageClassName") in ours and not spec.get("volumeName") and name not in volumes \
                and not spec.get("selector") and "deletionTimestamp" not in claim["metadata"]:
            provision(api, folder / name, claim)
    for name, volume in volumes.items():
        if volume["metadata"].get("annotations", {}).get("pv.kubernetes.io/provisioned-by") == PROVISIONER \
                and volume.get("status", {}).get("phase") == "Released" \
                and volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete":
            api.call("DELETE", f"{VOLUMES}/{name}")
            shutil.rmtree(folder / name, ignore_errors=True)
            print(f"deleted {name}", flush=True)


def provision(api, path, claim):
    path.mkdir(parents=True, exist_ok=True)
    os.chmod(path, 0o777)  # any user of a pod may write: the kubelet gives no host folder to an fsGroup
    meta, spec = claim["metadata"], claim["spec"]
    api.call("POST", VOLUMES, {
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": path.name, "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER}},
        "spec": {
            "capacity": {"storage": spec["resources"]["requests"]["storage"]}, "accessModes": spec["accessModes"],
            "persistentVolumeReclaimPolicy": "Delete", "storageClassName": spec["storageClassName"],
            "volumeMode": "Filesystem", "hostPath": {"path": str(path), "type": "Directory"},
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": meta["namespace"],
                         "name": meta["name"], "uid": meta["uid"]},
        },
    })
    print(f"provisioned {path.name} for {meta['namespace']}/{meta['name']}", flush=True)


def watch(api, path, changed):
    while True:
        try:
            connection = api.connect(timeout=None)
            connection.request("GET", f"{path}?watch=true&allowWatchBookmarks=false")
            response = connection.getresponse()
            if response.status != 200:
                raise Failure(f"watch of {path}: {response.status}")
            while response.readline():
                changed.set()
        except (OSError, http.client.HTTPException, Failure) as error:
            print(f"watch of {path} ended: {error}", file=sys.stderr, flush=True)
            time.sleep(1)
        changed.set()

