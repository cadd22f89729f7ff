"""The report page: its data, tables, plots and the short answer."""
