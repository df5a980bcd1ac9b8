"""Why a job is in its state, for people: explanations, differences between jobs, notifications of the end.

What the backends' evidence means is in `shunter.diagnosis`, which the schedulers use, too.
"""
