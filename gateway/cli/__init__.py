"""The command `kopgate`. Each module but `main` is a subcommand or supports some; `groups/` is one.

`main` imports `gateway.server`; the others talk Kafka's protocol to a gateway, or use
`gateway.settings`, `auth` and `reports`.
"""
