"""Components: typed functions that make a job, whose signatures are their command lines.

`trainyard.components.finder` finds them by name, `trainyard.components.component.Component` reads
arguments into a call, and the other modules (`utils`, `dist`, `serve`, `metrics`, `train`) are the builtins.
"""
