"""``python -m services.control_api --config hub.toml``"""

from __future__ import annotations

import sys

from services.control_api.app import create_app
from services.logs import bound_neighbours
from services.serve import serve
from services.settings import load_hub
from services.start import begin, kafka_transport


def main(arguments: list[str] | None = None) -> int:
    settings = begin("control_api", "The control API.", load_hub, arguments)
    bound_neighbours("kafka.log")
    settings.control_api.state_dir.mkdir(parents=True, exist_ok=True)
    transport = kafka_transport(settings.kafka, "apportion-control")
    return serve(create_app(transport, settings), settings.control_api, settings.control_api.port)


if __name__ == "__main__":
    sys.exit(main())
