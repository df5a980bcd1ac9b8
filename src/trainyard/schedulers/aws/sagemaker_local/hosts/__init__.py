"""The hosts of a job: containers or processes, and what they find."""
