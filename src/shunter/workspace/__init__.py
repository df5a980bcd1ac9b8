"""What code travels with a job: which files (`selection`), their content (`snapshot`), and how it is shipped.

Not here: where it runs (`schedulers`). Shipments bring it there as a directory or as a layer over an image.
"""
