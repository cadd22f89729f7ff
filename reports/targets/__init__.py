"""One file for each target that an application may be moved to."""
