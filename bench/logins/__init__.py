"""Cost of log-ins by SASL mechanism, times of wrong users and passwords, idle connections."""
