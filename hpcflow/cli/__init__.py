"""Command line: the `hpcflow` command; a subcommand is a module with `add_arguments` and `main`."""
