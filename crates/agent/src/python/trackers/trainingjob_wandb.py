"""Weights & Biases without its server: the run is kept in files, since `wandb.init` would end the program.

Asked when wandb is imported, and only then.
"""

import os
import sys


class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "wandb":
            sys.meta_path.remove(self)
            try:
                go_offline_if_gone()
            except Exception:
                pass
        return None


def go_offline_if_gone():
    import socket
    import time
    import urllib.parse

    proxies = ("https_proxy", "http_proxy", "all_proxy")
    if os.environ.get("WANDB_MODE") or any(name.lower() in proxies for name in os.environ):
        return
    url = os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai"
    parts = urllib.parse.urlsplit(url)
    port = parts.port or (80 if parts.scheme == "http" else 443)
    for attempt in range(3):
        try:
            socket.create_connection((parts.hostname, port), timeout=5).close()
            return
        except OSError as error:
            why = error
            time.sleep(0.5)
    os.environ["WANDB_MODE"] = "offline"
    print(
        "trainingjob: %s can't be reached (%s), so the run is kept in the folder wandb; `wandb sync` sends it later"
        % (url, why),
        file=sys.stderr,
    )


sys.meta_path.insert(0, Finder())
