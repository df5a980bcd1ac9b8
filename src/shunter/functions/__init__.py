"""Python functions as jobs: an executor whose calls run on any scheduler, and their results as futures."""
