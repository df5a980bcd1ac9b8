"""The rule about secrets, from both sides: what the launcher stores and what the toolkit prints."""

from __future__ import annotations

import json
import os
import re
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from trainyard.redaction import Redactor, is_secret_name
from trainyard_toolkit import masking, secret_rules

if TYPE_CHECKING:
    from collections.abc import Callable


def _words(text: str) -> list[str]:
    return text.split()


SECRET_NAMES = _words(
    """
    MY_PASS GITHUB_PAT SSH_KEY WANDB_KEY OPENAI_KEY password --pass --auth token secret credential
    api_key PASS DB_PASS db_pass AZURE_DEVOPS_EXT_PAT MY_TOKEN hub_token --hub-token push_to_hub_token
    use_auth_token --wandb-key OPENAI_API_KEY ANTHROPIC_API_KEY FOO_KEY AWS_SECRET_ACCESS_KEY
    AWS_SESSION_TOKEN apiKey APIKey x-api-key X-Auth-Token Proxy-Authorization Cookie SENTRY_DSN
    PGPASSWORD MYSQL_PWD client_secret clientSecret vault_secret_id token2 TOKEN_2 api_key_2
    SM_HP_PASSWORD SM_HP_API-KEY sm_hp_token private-key sshKey id_token bot_token SLACK_WEBHOOK_URL
    webhook_secret conn_str connectionString AZURE_STORAGE_CONNECTION_STRING STORAGE_KEY account_key
    sas_token encryption_key auth_token authToken _authToken REDIS_AUTH JWT NPM_TOKEN TWINE_PASSWORD
    DOCKER_AUTH_CONFIG HUGGING_FACE_HUB_TOKEN KAGGLE_KEY COMET_API_KEY --passphrase sshpass SSHPASS
    """
)

OTHER_NAMES = _words(
    """
    max_tokens --num-tokens tokenizer tokenizer_name monkey keyboard passes --pass-through author
    passthrough num_passes forward_pass backward-pass pass_rate pass_at_k compass bypass lowpass
    high_pass key keys sort_key primary_key text_key image-key label_key dataset_key cache_key
    query_key_value num_key_value_heads key_dim KEY_DIM kms_key kms_key_id VolumeKmsKeyId
    OutputDataConfig.KmsKeyId public_key AWS_ACCESS_KEY_ID pad_token eos_token bos_token_id mask_token
    sep_token cls_token unk_token additional_special_tokens tokens_per_sample max_num_batched_tokens
    num_input_tokens_seen include_num_input_tokens_seen max_new_tokens min_new_tokens
    tokenizers_parallelism TOKENIZERS_PARALLELISM moe-token-dispatcher-type moe_token_drop_policy
    token_dropout image_token_index vocab_tokens token_type_ids prompt_tokens completion_tokens
    tokens_per_second begin_suppress_tokens suppress_tokens forced_bos_token_id decoder_start_token_id
    authors author_name GIT_AUTHOR_NAME authority secretary PWD OLDPWD pattern patience path PATH
    patch_size password_file token_file secret_name SECRET_ARN credentials_file auth_type auth_method
    auth_url SSH_AUTH_SOCK XAUTHORITY ssh_key_path SSH_KEY_FILE sasl sass passive passage embeddings
    hot_key rng_key SEED_KEY metric_key state_dict_key SM_HP_TEXT_KEY learning_rate lr batch_size
    weight_decay session_id session classes dsname design pin_memory cookiecutter hidden_size key_bias
    attention_key token_ids n_tokens ctx_tokens_len global_batch_tokens train_tokens eval_tokens
    warmup_tokens lr_decay_tokens total_tokens token_embedding num_special_tokens padding_token
    start_token end_token stop_token stop_tokens img_token num_register_tokens visual_tokens
    thinking_budget_tokens reasoning_tokens vq_tokens model_max_length bandpass per_pass two_pass
    test_pass --no-auth --skip-auth disable_token keep_tokens keepkeys turnkey whiskey hockey jockey
    basic_auth_user PASSWORD_FILE file_pat pat spat --pat passenger passed pass_k pass@1 compile_pass
    fusion_pass loss_key optimizer_key data_key TASK_KEY target_key sample_key PARTITION_KEY
    primary_keys tokens_path TASK_KEY initializer_token --concept-token token_merger soft_tokens
    token_selection auth_loss secret_ratio password_dataset bearer_dim
    """
)

#: Texts, and how they are shown.
TEXTS = [
    ('sh -c "python t.py --password hunter2hunter2"', 'sh -c "python t.py --password ***"'),
    ("python t.py --password 'hunter2 hunter2' --lr 0.1", "python t.py --password '***' --lr 0.1"),
    ('python t.py --password "hunter2 \\"x\\" hunter2" --lr 0.1', 'python t.py --password "***" --lr 0.1'),
    ("python t.py --password=hunter2 --num-tokens 512", "python t.py --password=*** --num-tokens 512"),
    ("python t.py --password=hun,ter2 --lr 1", "python t.py --password=*** --lr 1"),
    ("python t.py --password=hun\\ ter2 --lr 1", "python t.py --password=*** --lr 1"),
    ("HF_TOKEN=hunter2 python t.py && echo done", "HF_TOKEN=*** python t.py && echo done"),
    (
        'export OPENAI_KEY="hunter2 x"; python t.py | tee log',
        'export OPENAI_KEY="***"; python t.py | tee log',
    ),
    ("env MY_PASS=hunter2 GITHUB_PAT=hunter2 python x.py", "env MY_PASS=*** GITHUB_PAT=*** python x.py"),
    ("curl -u me:hunter2 https://h/x", "curl -u me:*** https://h/x"),
    (
        "curl -sS --user 'me:hunter2' -H 'X-Api-Key: hunter2 x' https://h/x",
        "curl -sS --user 'me:***' -H 'X-Api-Key: ***' https://h/x",
    ),
    (
        'curl -H "Authorization: Bearer hunter2hunter2" https://h/x',
        'curl -H "Authorization: Bearer ***" https://h/x',
    ),
    ("curl -H 'Authorization: Basic aHVudGVyMg==' https://h", "curl -H 'Authorization: Basic ***' https://h"),
    ('curl -H "Authorization: Bearer $TOKEN" https://h', 'curl -H "Authorization: Bearer $TOKEN" https://h'),
    (
        "echo hunter2 | docker login -u me --password-stdin ghcr.io",
        "echo *** | docker login -u me --password-stdin ghcr.io",
    ),
    ("docker login -u me -p hunter2 ghcr.io", "docker login -u me -p *** ghcr.io"),
    ("mysql -uroot -phunter2 -h db", "mysql -uroot -p*** -h db"),
    ("wandb login " + "0123456789" * 4 + " && x", "wandb login *** && x"),
    ("sshpass -p hunter2 ssh me@h", "sshpass -p *** ssh me@h"),
    (
        "git clone https://me:hunter2@github.com/a/b && cd b",
        "git clone https://me:***@github.com/a/b && cd b",
    ),
    (
        "git clone https://ghp_abcdefghijklmnopqrstuvwxyz0123456789@github.com/a/b",
        "git clone https://***@github.com/a/b",
    ),
    (
        'wget "https://b.s3.amazonaws.com/k?X-Amz-Algorithm=AWS4&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F2024&X-Amz-Signature=abcdef0123&X-Amz-Expires=3600"',
        'wget "https://b.s3.amazonaws.com/k?X-Amz-Algorithm=AWS4&X-Amz-Credential=***&X-Amz-Signature=***&X-Amz-Expires=3600"',
    ),
    (
        "https://acct.blob.core.windows.net/c/b?sv=2020&sr=b&sig=hunter2%3D&se=2024",
        "https://acct.blob.core.windows.net/c/b?sv=2020&sr=b&sig=***&se=2024",
    ),
    ("redis://:hunter2@h:6379/0", "redis://:***@h:6379/0"),
    ("the option --token needs a value", "the option --token needs a value"),
    (
        "--password is required; --token TOKEN may be given",
        "--password is required; --token TOKEN may be given",
    ),
    ("error: the token: not found", "error: the token: not found"),
    (
        'python t.py --token $HF_TOKEN --password "$PASS" --secret ${SECRET}',
        'python t.py --token $HF_TOKEN --password "$PASS" --secret ${SECRET}',
    ),
    (
        "['python', 't.py', '--password', 'hunter2', '--lr', '0.1']",
        "['python', 't.py', '--password', '***', '--lr', '0.1']",
    ),
    (
        '["python","t.py","--password","hunter2","--lr","0.1"]',
        '["python","t.py","--password","***","--lr","0.1"]',
    ),
    (
        '{"hp": "{\\"password\\": \\"hunter2\\", \\"lr\\": 1}"}',
        '{"hp": "{\\"password\\": \\"***\\", \\"lr\\": 1}"}',
    ),
    (
        '{"args": ["sh", "-c", "t.py --password hunter2 x"], "secrets": {"deep": ["hunter2"]}}',
        '{"args": ["sh", "-c", "t.py --password *** x"], "secrets": {"deep": ["***"]}}',
    ),
    (
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789 and sk-ant-api03-abcdefghijklmnop and xoxb-12345678901",
        "*** and *** and ***",
    ),
    (
        "AKIAIOSFODNN7EXAMPLE eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdef-_ xoxb-123456789012-abcdef",
        "*** *** ***",
    ),
    ("cat: /etc/passwd: Permission denied", "cat: /etc/passwd: Permission denied"),
    (
        "image my-secret:v1 registry/auth-token:latest --image me/token:v2 localhost:5000/secret:1.0",
        "image my-secret:v1 registry/auth-token:latest --image me/token:v2 localhost:5000/secret:1.0",
    ),
    ("-----BEGIN RSA PRIVATE KEY-----\\nabc\\n-----END RSA PRIVATE KEY----- rest", "*** rest"),
    ('os.environ["PASSWORD"] = "hunter2"', 'os.environ["PASSWORD"] = "***"'),
    (
        "python -c \"import os; token = os.environ['HF_TOKEN']; login(token=token)\"",
        "python -c \"import os; token = os.environ['HF_TOKEN']; login(token=token)\"",
    ),
    ("<password>hunter2</password>", "<password>***</password>"),
    ("machine h login me password hunter2", "machine h login me password ***"),
    ("openssl enc -pass pass:hunter2 -in x", "openssl enc -pass *** -in x"),
    (
        "--special_tokens '<|im_end|>' --mask-token [MASK] --tokens 300000000 --auth basic --auth-token True",
        "--special_tokens '<|im_end|>' --mask-token [MASK] --tokens 300000000 --auth basic --auth-token True",
    ),
    ('SM_USER_ARGS=["--password","hunter2","--lr","1"]', 'SM_USER_ARGS=["--password","***","--lr","1"]'),
    (
        "password='hunter2' password = hunter2, x=1 (password=hunter2) {password: hunter2}",
        "password='***' password = ***, x=1 (password=***) {password: ***}",
    ),
    (
        "--db.password hunter2 -password hunter2 +auth.token=hunter2 ++model.api_key=hunter2",
        "--db.password *** -password *** +auth.token=*** ++model.api_key=***",
    ),
    ("--ssh-key ~/.ssh/id_rsa --ssl-key /etc/ssl/x.pem", "--ssh-key ~/.ssh/id_rsa --ssl-key /etc/ssl/x.pem"),
    ("if password == other: pass", "if password == other: pass"),
    (
        "Authorization: AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/2024, Signature=hunter2",
        "Authorization: ***",
    ),
    ("Cookie: a=hunter2; b=hunter2", "Cookie: ***"),
    (
        "bash -lc 'cd /x && MY_SECRET=hunter2 python t.py --api-key hunter2 > out 2>&1'",
        "bash -lc 'cd /x && MY_SECRET=*** python t.py --api-key *** > out 2>&1'",
    ),
    (
        "--password=hunter2|tee x; --password hunter2;ls; (--password hunter2)",
        "--password=***|tee x; --password ***;ls; (--password ***)",
    ),
    ("--token --other; --flag-token -v", "--token --other; --flag-token -v"),
]

TEXTS += [
    ("aws configure set aws_secret_access_key hunter2", "aws configure set aws_secret_access_key ***"),
    (
        "the option may set token to nothing; set password is",
        "the option may set token to nothing; set password is",
    ),
]
TEXTS += [
    (text, text)
    for text in (
        "t.py --password $(cat /run/secret) --lr 1",
        'MY_PASS="$(pass show x)" t.py --token "$token" --secret $secret',
        "t.py --api-key `cat key` x",
    )
]
TEXTS += [
    (shlex.join(["sh", "-c", text]), shlex.join(["sh", "-c", wanted]))
    for text, wanted in [
        ("MY_PASS='hunter2 x' python t.py", "MY_PASS='***' python t.py"),
        ("curl -H 'X-Api-Key: hunter2 x' h", "curl -H 'X-Api-Key: ***' h"),
        ("MY_PASS='' python t.py", "MY_PASS='' python t.py"),
        (
            shlex.join(["sh", "-c", "t.py --password 'hunter2 x' a"]),
            shlex.join(["sh", "-c", "t.py --password '***' a"]),
        ),
    ]
]


def _shelled(words: list[str], levels: int) -> str:
    for _ in range(levels):
        words = ["sh", "-c", shlex.join(words)]
    return shlex.join(words)


#: A secret with quotes in it, and quoted settings, as `shlex` writes them at each depth.
TEXTS += [
    (_shelled(["t.py", *words, "--lr", "1"], levels), _shelled(["t.py", *wanted, "--lr", "1"], levels))
    for levels in range(3)
    for words, wanted in [
        (["--password", "hun'ter2 x"], ["--password", "* * *"]),
        (["--password=hun'ter2 x;y"], ["--password=* * *"]),
        (["PASSWORD=hun'ter2 x"], ["PASSWORD=* * *"]),
        (["+db.password=hun ter2"], ["+db.password=* * *"]),
        (["--cfg", str({"password": "hunter2 x"})], ["--cfg", str({"password": "* * *"})]),
        (["--num-tokens", "it's x"], ["--num-tokens", "it's x"]),
    ]
]
TEXTS = [(text, wanted.replace("* * *", "***")) for text, wanted in TEXTS]

#: Lists of arguments, and how they are shown.
WORDS = [
    (["PASSWORD=hun'ter2 x", "db.password=hun ter2"], ["PASSWORD=***", "db.password=***"]),
    (["wandb", "login", "0123456789" * 4], ["wandb", "login", "***"]),
    (["--password", "hun ter2", "--lr", "1"], ["--password", "***", "--lr", "1"]),
    (["--password=a b;c&d", "x"], ["--password=***", "x"]),
    (["-H", "Authorization: Bearer a b"], ["-H", "Authorization: Bearer ***"]),
    (["-H", "X-Api-Key: a b"], ["-H", "X-Api-Key: ***"]),
    (["curl", "-u", "me:hunter2", "h"], ["curl", "-u", "me:***", "h"]),
    (
        ["docker", "run", "--user", "1000:1000", "-e", "HF_TOKEN=a b"],
        ["docker", "run", "--user", "1000:1000", "-e", "HF_TOKEN=***"],
    ),
    (["docker", "login", "-u", "me", "-p", "hunter2"], ["docker", "login", "-u", "me", "-p", "***"]),
    (
        ["sh", "-c", "A=1 MY_PASS=hunter2 t.py --pass hunter2"],
        ["sh", "-c", "A=1 MY_PASS=*** t.py --pass ***"],
    ),
    (
        ["sh", "-c", "t.py --password hunter2hunter2 --num-tokens 512"],
        ["sh", "-c", "t.py --password *** --num-tokens 512"],
    ),
    (["--env", "LR=1,HF_TOKEN=abc,N=2"], ["--env", "LR=1,HF_TOKEN=***,N=2"]),
    (["--max-tokens", "512", "--tokenizer", "gpt2", "--pass-through", "x", "--author", "me"],) * 2,
    (["--num-tokens", "512", "--tokens", "300B", "--eos-token", "</s>", "--use-auth-token", "True"],) * 2,
    (
        [
            "--token",
            "--other",
            "--auth",
            "basic",
            "--token",
            "$HF_TOKEN",
            "--ssh-key",
            "/home/me/.ssh/id_ed25519",
        ],
    )
    * 2,
    (["mysql", "-uroot", "-phunter2"], ["mysql", "-uroot", "-p***"]),
]

#: Nested values, and how they are shown.
VALUES = [
    ({"env": {"MY_PASS": "x1", "LR": "0.1"}}, {"env": {"MY_PASS": "***", "LR": "0.1"}}),
    (
        [{"Name": "DB_PASSWORD", "Value": "x"}, {"Name": "LR", "Value": "1"}],
        [{"Name": "DB_PASSWORD", "Value": "***"}, {"Name": "LR", "Value": "1"}],
    ),
    (
        {"hp": '{"password": "x", "args": ["--token", "a1b2"]}'},
        {"hp": '{"password": "***", "args": ["--token", "***"]}'},
    ),
    (
        {"secrets": {"deep": ["a", {"b": "c"}]}, "max_tokens": 5, "password": 12345678},
        {"secrets": {"deep": ["***", {"b": "***"}]}, "max_tokens": 5, "password": "***"},
    ),
    ({"secret": {"name": "A", "valueFrom": "arn:aws:secretsmanager:x"}},) * 2,
]


def launcher(value: Any) -> Any:
    return json.loads(re.sub(r"<redacted(?::[^<>]+)?>", "***", json.dumps(Redactor({}).json(value))))


def toolkit(value: Any) -> Any:
    os.environ.pop("PYTEST_CURRENT_TEST", None)  # it holds the case's own text
    return json.loads(json.dumps(masking.Masker().json(value)).replace(masking.MASK, "***"))


@pytest.fixture(params=[launcher, toolkit])
def shown(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    for name in os.environ:
        monkeypatch.delenv(name)
    side: Callable[[Any], Any] = request.param
    return side


def test_names() -> None:
    for judge in (is_secret_name, masking.is_secret_name):
        assert [name for name in SECRET_NAMES if not judge(name)] == []
        assert [name for name in OTHER_NAMES if judge(name)] == []


def test_names_stay_names_in_texts(shown: Callable[[Any], Any]) -> None:
    for name in OTHER_NAMES:
        texts = [
            f"t.py --{name.lstrip('-')} abc123def x",
            f"{name}=abc123def",
            f"{name}: abc123def",
            json.dumps({name: "abc123def"}),
        ]
        assert [shown(text) for text in texts] == texts
        assert shown([name, "abc123def"]) == [name, "abc123def"]


@pytest.mark.parametrize(("value", "wanted"), [*TEXTS, *WORDS, *VALUES])
def test_values(shown: Callable[[Any], Any], value: Any, wanted: Any) -> None:
    assert shown(value) == wanted
    assert shown(wanted) == wanted


#: Each made patterns of ours read one text from many places.
SLOW = [
    "://password:",
    "--password '",
    "password=${",
    '\\"?sig=',
    "password=[",
    "echo a |",
    "curl -u ",
    "token: ",
    "eyJa.eyJ",
    "<a>",
]


@pytest.mark.slow
@pytest.mark.parametrize("part", SLOW)
def test_long_texts_are_read_once(part: str) -> None:
    text = part * (300_000 // len(part))
    secret_rules.find_secrets(text)
    secret_rules.SecretFilter(lambda name, secret: "***").words([text])
