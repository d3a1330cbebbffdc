"""``python -m services.dashboard --config hub.toml``"""

from __future__ import annotations

import argparse
import sys

from global_sync.transport.kafka import KafkaOptions, KafkaTransport
from services.dashboard.app import create_app
from services.logs import configure_logging
from services.serve import serve
from services.settings import InvalidSettings, load_hub


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m services.dashboard", description="The dashboard.")
    parser.add_argument("--config", required=True, help="hub.toml")
    try:
        settings = load_hub(parser.parse_args(arguments).config)
    except InvalidSettings as error:
        print(error, file=sys.stderr)
        return 2
    configure_logging("dashboard", level=settings.log_level)
    transport = KafkaTransport(KafkaOptions(settings.kafka.bootstrap, client_id="apportion-dashboard"))
    app = create_app(transport, settings)
    return serve(app, settings.dashboard.host, settings.dashboard.port, app.state.broadcaster.close)


if __name__ == "__main__":
    sys.exit(main())
