"""Kubernetes: Jobs, JobSets and Volcano jobs. Making images: see `trainyard.workspace.images`."""
