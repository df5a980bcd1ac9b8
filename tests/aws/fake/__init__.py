"""A fake of the AWS endpoints that the launcher uses: AWS Batch, CloudWatch Logs, STS, IAM.

It speaks the real wire formats on a port of this machine, so that any client can be pointed to it with
``AWS_ENDPOINT_URL``. Every answer is checked against botocore's model of the service before it is sent.

    with FakeAws() as aws:
        os.environ.update(aws.environ())
        ...
        aws.faults.add("SubmitJob", "lose_answer")
        aws.batch.runs = False                 # jobs wait; advance(), log() and finish() move them on
        aws.logs.put("/aws/batch/job", "stream", ["a line"], visible_after=3)
        assert aws.defects == []
"""

from tests.aws.fake.server import FakeAws

__all__ = ["FakeAws"]
