"""The executors: what runs programs on this machine, as processes or as containers, below all schedulers.

What a scheduler alone knows (its options, its request, the words of its states) is in the scheduler's folder.
"""
