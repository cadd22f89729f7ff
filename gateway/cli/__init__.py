"""The command `kopgate`. Each module but `main` is one group of subcommands or serves them."""
