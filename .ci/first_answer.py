"""Waits for a server, asks it for the capital of France, and fails unless the answer continues with Paris."""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from typing import Any


def post(url: str, body: dict[str, object]) -> Any:
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def main() -> None:
    base, deadline = sys.argv[1], time.monotonic() + 600
    while True:
        try:
            urllib.request.urlopen(f"{base}/health", timeout=5).close()
            break
        except (urllib.error.URLError, OSError):
            if time.monotonic() > deadline:
                sys.exit("the server did not become ready")
            time.sleep(0.2)
    answer = post(
        f"{base}/v1/completions",
        {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0},
    )
    text = answer["choices"][0]["text"]
    print(f"The capital of France is{text}")
    if not text.startswith(" Paris"):
        sys.exit(f"expected ' Paris', got {text!r}")


if __name__ == "__main__":
    main()
