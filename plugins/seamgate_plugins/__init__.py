"""The built-in plugins: policy enforcement, DNS coalescing, credential injection, response inspection.

They import only `seamgate`, as a stranger's plugin does, so that the hooks are known to suffice.
"""
