"""``python -m infra.region up --config FILE``."""

from infra.region.cli import app

if __name__ == "__main__":
    app(prog_name="apportion region")
