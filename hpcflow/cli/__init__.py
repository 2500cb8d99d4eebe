"""The `hpcflow` command. Each subcommand is a module here with `add_arguments` and `main`."""
