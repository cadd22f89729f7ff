"""Everything that exists for old clients. It can be deleted on the day they are gone; nothing outside may depend on more than its public functions."""
