"""Cost of log-ins by SASL mechanism, and times of wrong users and wrong passwords."""
