"""Topics in the served namespaces: listing, changes, names, policies and subscriptions."""
