"""The operator's image for all architectures, as an OCI archive: one index, and a layer and configuration for each."""

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

from lib import images

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


def digest(data):
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def as_bytes(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def packed(entries, epoch, compress=True):
    """A tar of (name, mode, bytes or None for a folder), of nobody's and of one time."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, mode, data in entries:
            info = tarfile.TarInfo(name)
            info.mtime, info.mode = epoch, mode
            if data is None:
                info.type = tarfile.DIRTYPE
                tar.addfile(info)
            else:
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return gzip.compress(out.getvalue(), 6, mtime=0) if compress else out.getvalue()


def of_folder(folder):
    """The entries of a folder, sorted; links are followed."""
    for path in sorted(folder.rglob("*")):
        mode = path.stat().st_mode & 0o7777
        yield (str(path.relative_to(folder)), mode if path.is_dir() else mode | 0o444,
               None if path.is_dir() else path.read_bytes())


class Archive:
    """An OCI layout in the making."""

    def __init__(self):
        self.blobs = {}

    def blob(self, data, media_type, **more):
        self.blobs[digest(data)] = data
        return {"mediaType": media_type, "digest": digest(data), "size": len(data), **more}

    def image(self, folder, architecture, config, labels, created, epoch):
        """The descriptor of an image with the files of `folder` as its only layer."""
        plain = packed(of_folder(folder), epoch, compress=False)
        layer = self.blob(gzip.compress(plain, 6, mtime=0), LAYER)
        described = {
            "architecture": architecture, "os": "linux", "created": created,
            "config": {**config, "Env": [f"PATH={images.PATH}"], "Labels": labels},
            "rootfs": {"type": "layers", "diff_ids": [digest(plain)]},
            "history": [{"created": created, "created_by": "release/make"}]}
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": self.blob(as_bytes(described), CONFIG),
                    "layers": [layer], "annotations": labels}
        return self.blob(as_bytes(manifest), MANIFEST, platform={"architecture": architecture, "os": "linux"})

    def index(self, manifests, labels):
        return self.blob(as_bytes({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests,
                                   "annotations": labels}), INDEX)

    def write(self, path, index, name, tag, epoch):
        """`name` is what containerd calls the image, `tag` what other programs find it by."""
        top = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [{**index, "annotations": {
            "io.containerd.image.name": f"{name}:{tag}", "org.opencontainers.image.ref.name": tag}}]}
        entries = [("oci-layout", 0o644, b'{"imageLayoutVersion":"1.0.0"}'), ("index.json", 0o644, as_bytes(top)),
                   ("blobs", 0o755, None), ("blobs/sha256", 0o755, None)]
        entries += [(f"blobs/{key.replace(':', '/')}", 0o644, self.blobs[key]) for key in sorted(self.blobs)]
        Path(path).write_bytes(packed(entries, epoch, compress=False))
