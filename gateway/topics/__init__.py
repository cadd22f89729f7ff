"""Topics: the registry, their names, and the state of each topic."""
