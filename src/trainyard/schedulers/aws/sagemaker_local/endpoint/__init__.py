"""SageMaker's API, answered on this machine."""
