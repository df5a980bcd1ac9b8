"""SageMaker training jobs on this machine: turns a `CreateTrainingJob` request into hosts, data and programs.

How processes and containers are run is in `schedulers/exec`.
"""
