"""`python -m hpcflow` is the `hpcflow` command."""

from hpcflow.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
