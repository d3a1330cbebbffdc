"""``python -m infra.containers.alive [PORT]``: 0 when the service of this container answers, 1 when not.

A container's health check asks whether to start it anew, so it asks ``/livez``, which looks at nothing beyond the
process.  ``PORT`` is 8080 when it is not given: every service of the shipped compose files listens there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from infra.region.region import answers

PORT = 8080
TIMEOUT_S = 0.9


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    port = int(given[0]) if given else PORT
    at = f"127.0.0.1:{port}/livez"
    return 0 if answers(f"http://{at}", TIMEOUT_S) or answers(f"https://{at}", TIMEOUT_S) else 1


if __name__ == "__main__":
    sys.exit(main())
