"""Kubernetes: Jobs, JobSets and Volcano jobs. Making images is not here, it is `trainyard.workspace.images`."""
