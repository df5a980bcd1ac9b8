"""Components: typed functions that make a job; their signatures are their command lines.

`finder` finds them by name, `component` calls them with arguments; `utils`, `dist`, `serve`, `metrics` and
`train` are the builtins. The README says how they work together.
"""
