"""Reports on runs: `run_summary` reads run directories; `run_tables`, `scaling_plots` show them."""
