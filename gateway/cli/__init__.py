"""The command `kopgate`. Each module but `main` is a group of subcommands or supports one."""
