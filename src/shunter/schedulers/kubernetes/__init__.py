"""Kubernetes: Jobs, JobSets and Volcano jobs. Making images: see `shunter.workspace.images`."""
