"""``python -m services.dashboard --config hub.toml``"""

from __future__ import annotations

import sys

from services.dashboard.app import create_app
from services.serve import serve
from services.settings import load_hub
from services.start import begin, kafka_transport


def main(arguments: list[str] | None = None) -> int:
    settings = begin("dashboard", "The dashboard.", load_hub, arguments)
    transport = kafka_transport(settings.kafka, "apportion-dashboard")
    app = create_app(transport, settings)
    return serve(app, settings.dashboard, settings.dashboard.port, app.state.broadcaster.close)


if __name__ == "__main__":
    sys.exit(main())
