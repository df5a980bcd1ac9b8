"""`ray`: jobs on a Ray cluster, through its Jobs API over HTTP; Ray need not be installed here.

`shipped/` runs on the cluster. The client of HTTP itself is in `shunter.http`.
"""
