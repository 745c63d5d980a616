"""Policy: what guests may do, as security teams write it, and its evaluation. Pure but for `files`, which reads.

`loader` makes a frozen `model.Policy` of a file's text, `evaluation.Evaluator` judges with any number of them, and
`explain`, `lint` and `testing` talk about the result. docs/policy.md is the language's reference.
"""
