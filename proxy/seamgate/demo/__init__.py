"""The demo: an upstream that talks like an LLM API, a gateway, and an agent that tries this and that.

    stage     the folder, the files and the servers, started and stopped
    upstream  the LLM API, with TLS
    names     the DNS server, which counts what it is asked
    agent     the agent's script: another process, plain standard library
    story     what happened, scene by scene, each with checks of what it claims

Called by `seamgate demo`, which shows the scenes. Everything that is shown was observed: in the agent's report, in the
upstream's and the DNS server's books, in the journal.
"""
