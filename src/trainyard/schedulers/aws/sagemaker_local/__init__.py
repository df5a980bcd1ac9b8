"""SageMaker training jobs on this machine: `CreateTrainingJob` requests, carried out here."""
