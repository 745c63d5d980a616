"""The audit log: one terminal record for every request, in a hash-chained journal that shows when it was touched.

`record` is the noun, `journal` the one writer, `verify` the judge of what it wrote. docs/audit.md explains the files.
"""
