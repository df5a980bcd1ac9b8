"""`local_docker`: jobs as containers of a Docker daemon. All that is known of a job, the daemon keeps."""
