"""What travels with a job: which files, their fingerprint, and how they are kept and shipped.

`selection` decides which files belong to a workspace, `snapshot` fixes their content, `store` keeps it, and
shipments bring it to where the job runs.
"""
