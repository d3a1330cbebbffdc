"""``python -m infra.local up``."""

from infra.local.cli import app

if __name__ == "__main__":
    app(prog_name="apportion local")
