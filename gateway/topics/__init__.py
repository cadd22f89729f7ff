"""Topics of the cluster: the registry, names, and the state of each topic."""
