"""The settings: the model, its sources (flags, environment, file), addresses and aliases."""
