"""The operating system: processes, file events, locks by name, and who runs this on which machine.

Nothing that only Linux has is used anywhere else; `linux` has it, and nothing about jobs is known here.
"""
