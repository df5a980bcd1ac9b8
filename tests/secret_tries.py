"""Secrets in places of every kind, and values that are none, for tests of both halves and of the command."""

from __future__ import annotations

import json
import shlex

#: Arguments of a command; ``{}`` stands for a secret that no shape gives away.
PLACES: dict[str, list[str]] = {
    "flag and value": ["--password", "{}"],
    "flag=value": ["--api-key={}"],
    "value with spaces": ["--token", "my {} x"],
    "value with quotes": ["--passphrase", "a'b\"c{}"],
    "value in many lines": ["--secret", "first\n{}\nlast"],
    "single dash": ["-password", "{}"],
    "name of Hydra": ["+db.password={}"],
    "variable": ["HF_TOKEN={}"],
    "variable with spaces": ["DB_PASSWORD=a {} b"],
    "variable in a list": ["--env", "LR=1,WANDB_API_KEY={},N=2"],
    "header": ["-H", "Authorization: Bearer {}"],
    "own header": ["-H", "X-Api-Key: a {}"],
    "header without a space": ["curl -H 'X-Auth-Token:{}' https://h"],
    "URL": ["https://user:{}@host/path"],
    "database": ["postgres://u:p@{}@db:5432/x"],
    "signed URL": ["https://a.blob.core.windows.net/c?sv=1&sig={}&se=2"],
    "curl -u": ["curl", "-u", "me:{}", "https://h"],
    "docker login -p": ["docker", "login", "-u", "me", "-p", "{}"],
    "JSON": [json.dumps({"lr": 1, "password": "{}"})],
    "JSON of JSON": [json.dumps({"hp": json.dumps({"client_secret": "{}"})})],
    "JSON below a name": [json.dumps({"secrets": {"db": ["{}"]}})],
    "JSON of arguments": [json.dumps(["t.py", "--token", "{}"])],
    "JSON over lines": [json.dumps({"a": 1, "auth_token": "{}"}, indent=2)],
    "JSON of names": [json.dumps([{"name": "DB_PASSWORD", "value": "{}"}])],
    "dict of Python": [str({"password": "{}", "lr": 1})],
    "YAML": ["lr: 1\npassword: {}\nepochs: 3"],
    "YAML with spaces": ["db:\n  user: me\n  password: two words {}\n"],
    "YAML in quotes": ["db:\n  - password: '{}'\n"],
    "YAML block": ["db:\n  password: |\n    first\n    {}\n  user: me"],
    "YAML list": ["passwords:\n  - a\n  - {}\nlr: 1"],
    "YAML of arguments": ["args:\n  - --password\n  - {}\n"],
    "YAML, \\n as two characters": ["lr: 1\\npassword: {}\\nepochs: 3"],
    "INI": ["[db]\nuser = me\npassword = {}\n"],
    "TOML": ['[db]\napi_key = "{}"\n'],
    "environment file": ["LR=1\nexport OPENAI_API_KEY={}\nN=2"],
    "script": ["sh", "-c", "set -e\nexport MY_PASS='{}'\npython t.py --lr 1"],
    "script, \\n as two characters": ["bash", "-c", "set -e\\nMY_SECRET={} python t.py"],
    "script of one line": ["sh", "-c", "cd x && python t.py --password {} --lr 1 | tee log"],
    "continued line": ["sh", "-c", "python t.py \\\n  --password \\\n  {} \\\n  --lr 1"],
    "script in a script": ["sh", "-c", shlex.join(["sh", "-c", "t.py --password 'a {}'"])],
    "header in a script": ["sh", "-c", "curl -s -H 'Authorization: Bearer {}' https://h"],
    "Python": ["python", "-c", "import os\nos.environ['MY_TOKEN'] = '{}'\napi_key = \"x\""],
    "Python with a type": ["python", "-c", 'class A:\n    token: str = "{}"\n'],
    "XML": ["<a><password>{}</password></a>"],
    "connection string": ["Server=a;Pwd={};Uid=c"],
}

_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
#: Secrets that are known by their shape wherever they are.
SHAPES = [
    f"AKIA{_LETTERS[26:42].upper()}",
    f"ghp_{_LETTERS[:36]}",
    f"github_pat_{_LETTERS[:22]}_{_LETTERS}",
    f"hf_{_LETTERS[:34]}",
    f"sk-ant-api03-{_LETTERS[:40]}",
    f"sk-{_LETTERS[:48]}",
    f"xoxb-123456789012-{_LETTERS[:24]}",
    f"glpat-{_LETTERS[:20]}",
    f"AIza{_LETTERS[:35]}",
    f"npm_{_LETTERS[:36]}",
    f"pypi-AgEI{_LETTERS}",
    f"dop_v1_{'0a' * 32}",
    f"SG.{_LETTERS[:22]}.{_LETTERS[:43]}",
    f"eyJ{_LETTERS[:20]}.eyJ{_LETTERS[:30]}.{_LETTERS[:43]}",
    f"Bearer {_LETTERS[:40]}",
    f"https://hooks.slack.com/services/T000/B000/{_LETTERS[:24]}",
    f"-----BEGIN RSA PRIVATE KEY-----\n{_LETTERS}\n-----END RSA PRIVATE KEY-----",
]

#: Arguments that stay as they are.
HARMLESS = [
    *(["--max-tokens", "512"], ["--num_tokens=300B"], ["--tokenizer", "gpt2"], ["tokenizer_name=bert"]),
    *(["--author", "Jane Doe"], ["GIT_AUTHOR_NAME=Jane"], ["--token-count", "17"], ["--key-dim", "64"]),
    *(["--pad-token", "[PAD]"], ["--eos_token=</s>"], ["--mask-token", "<mask>"], ["bos_token_id=1"]),
    *(["--use-auth-token", "True"], ["--auth", "basic"], ["--no-auth", "x"], ["auth_type=oidc"]),
    *(["--sort-key", "date"], ["PRIMARY_KEY=id"], ["--image-key", "jpg"], ["num_key_value_heads=8"]),
    *(["--forward-pass", "twice"], ["--passes", "three"], ["bypass=all"], ["compass: north"]),
    *(["--password-file", "/run/x"], ["--ssh-key", "~/.ssh/id_ed25519"], ["SECRET_ARN=arn:aws:x:y"]),
    *(["GOOGLE_APPLICATION_CREDENTIALS=/etc/gcp/key.json"], ["AWS_ACCESS_KEY_ID=mine"], ["PWD=/home/me"]),
    *(
        ["--token", "$HF_TOKEN"],
        ["--password", "${PASSWORD}"],
        ["api_key=null"],
        ["--secret", "arn:aws:ssm:x:y:z"],
    ),
    *(["s3://bucket/a@b"], ["ssh://git@github.com/a/b"], ["http://host:8080/x?y=1"], ["me/token:v2"]),
    *(
        ["sh", "-c", 'curl -H "Authorization: Bearer $TOKEN" https://h'],
        ["docker", "run", "--user", "1000:1000"],
    ),
    *(["sh", "-c", "t.py --password $(cat /run/secret) --lr 1"], ["cat: /etc/passwd: Permission denied"]),
    [
        "python",
        "-c",
        "token = os.environ['HF_TOKEN']\nlogin(token=token, password=args.password)\nif password == x: pass",
    ],
    [
        "python",
        "-c",
        "class A:\n    token: str\n    password: str | None = None\n    max_tokens: int = 100\n",
    ],
    ["lr: 1\nmax_tokens: 100\ntokenizer: gpt2\nauthor: me\ntokens_per_second: 5\n"],
    [json.dumps({"max_tokens": 5, "password": None, "use_token": True, "key": "value", "keys": ["a"]})],
    ["the option --token needs a value; --password is required; error: the token: not found"],
]

#: Texts, and how they are shown: what surrounds a secret stays.
TEXTS = [
    ("python t.py --password 'hunter2 x' --lr 0.1", "python t.py --password '***' --lr 0.1"),
    ("python t.py --password=hun,ter2 --num-tokens 512", "python t.py --password=*** --num-tokens 512"),
    ("HF_TOKEN=hunter2 python t.py && echo done", "HF_TOKEN=*** python t.py && echo done"),
    ('export OPENAI_KEY="a b"; python t.py | tee log', 'export OPENAI_KEY="***"; python t.py | tee log'),
    ("curl -H 'Authorization: Basic aHVudGVyMg==' https://h", "curl -H 'Authorization: Basic ***' https://h"),
    ("git clone https://me:hunter2@github.com/a/b", "git clone https://me:***@github.com/a/b"),
    ("git clone https://ghp_0123456789abcdef@github.com/a", "git clone https://***@github.com/a"),
    ("https://h/c?sv=1&sig=a%3D&se=2", "https://h/c?sv=1&sig=***&se=2"),
    ("sshpass -p hunter2 ssh me@h", "sshpass -p *** ssh me@h"),
    ("echo hunter2 | docker login --password-stdin h", "echo *** | docker login --password-stdin h"),
    ("mysql -uroot -phunter2 -h db", "mysql -uroot -p*** -h db"),
    ("machine h login me password hunter2", "machine h login me password ***"),
    ("aws configure set aws_secret_access_key hunter2", "aws configure set aws_secret_access_key ***"),
    ("token=ab,password=b c=d", "token=***,password=*** c=d"),
    ("{password: hunter2} (password=hunter2)", "{password: ***} (password=***)"),
    ("--password=hunter2|tee x; --password hunter2;ls", "--password=***|tee x; --password ***;ls"),
    (
        '{"hp": "{\\"password\\": \\"x1\\", \\"lr\\": 1}"}',
        '{"hp": "{\\"password\\": \\"***\\", \\"lr\\": 1}"}',
    ),
    ("db:\n  password: |\n    a\n    b\n  user: me", "db:\n  password: |\n    ***\n  user: me"),
    ("Cookie: a=x; b=y", "Cookie: ***"),
    ("9password=hunter22 ..password=hunter22", "9password=*** ..password=***"),
]
