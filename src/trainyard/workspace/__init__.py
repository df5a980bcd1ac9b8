"""What travels with a job: which files, and how they get there.

``selection`` decides which files, ``snapshot`` fixes their content, ``store`` keeps it, and a `Shipment`
brings it to where the job runs: as a directory (``directory``) or as a layer over an image (``patch``).
"""
