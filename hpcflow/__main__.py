"""Entry point of `python -m hpcflow`: runs the `hpcflow` command."""

from hpcflow.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
