"""`ray`: jobs on a Ray cluster, by its Jobs API over HTTP; no Ray is needed here.

`shipped/` runs on the cluster. The client of HTTP itself is in `trainyard.http`.
"""
