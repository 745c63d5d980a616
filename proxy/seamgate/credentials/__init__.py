"""Credentials: where their values come from, which requests get them, how they go in, and how they never come back.

`config` describes them, `sources` fetches values as `secret.Secret`s, `binding` says which requests may carry one,
`placeholders` and `injection` put it in at the last hop, `scanner` looks for what must not leave, `redaction` takes
out what must not come back. The built-in plugin `seamgate_plugins.credentials` ties them to the hooks.
"""
