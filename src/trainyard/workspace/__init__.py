"""What travels with a job: which files, and how they get there.

``selection`` decides which files, ``snapshot`` fixes their content, and a `Shipment` brings them to where the
job runs: as a directory (``directory``) or as a layer over the job's image (``patch``).
"""
