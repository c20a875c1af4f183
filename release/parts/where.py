"""Where a release is published: one variable, PUBLISH, says it for the image, the chart and the files."""

import os
from dataclasses import dataclass

# Reserved for examples: nothing is published there.
DEFAULT = "example.com/ml/trainingjob-operator"


@dataclass(frozen=True)
class Published:
    """`image`: the image's repository. `chart`: the folder of the chart in a registry. `files`: a URL of files."""

    image: str
    chart: str
    files: str
    source: str


def published(version, place=None):
    """For PUBLISH=HOST/PATH. GitHub has its registry under another name."""
    place = (place or os.environ.get("PUBLISH") or DEFAULT).strip().strip("/")
    if "://" in place or "/" not in place or place != place.lower():
        raise ValueError(f"PUBLISH={place}: write HOST/PATH in lower case, such as github.com/owner/name")
    host, path = place.split("/", 1)
    registry = f"ghcr.io/{path}" if host == "github.com" else place
    source = f"https://{place}"
    return Published(f"{registry}/operator", f"oci://{registry}/charts", f"{source}/releases/download/v{version}",
                     source)
