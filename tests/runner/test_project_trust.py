"""Which settings of a project need trust, one by one, and how values and paths are judged."""

from __future__ import annotations

from contextlib import closing
from dataclasses import make_dataclass
from pathlib import Path

import pytest

from shunter.components.finder import BUILTINS, get_component
from shunter.errors import ConfigError
from shunter.runner.config import RUN_KEYS, effective_options, load_config
from shunter.runner.config_files import read_project_file
from shunter.runner.project_trust import SENSITIVE_PARAMETERS, checked, kind_of_run_key, what_it_names
from shunter.schedulers.registry import DEFAULT_SCHEDULER_MODULES, get_scheduler_factory
from shunter.specs.options import (
    ADDRESS,
    FILES_OUTSIDE,
    PLACE_OUTSIDE,
    PROGRAM,
    UNDECLARED,
    option,
    runopts,
)
from tests.trusting import trust_project

#: Options that were judged to be mere defaults of a job. A new option belongs here, or needs trust.
DEFAULTS = """
account array auto_set_cuda_visible_devices base_job_name batch_attempts batch_preemption_retries
batch_priority batch_quota_share batch_retry_rules batch_share_identifier batch_timeout chain
checkpoint_local_path comment constraint container container_log_level disable_output_compression
disable_profiler distribution efa_device_count enable_infra_check enable_network_isolation
enable_sagemaker_metrics encrypt_inter_container_traffic entrypoint_label_selector entrypoint_memory
entrypoint_num_cpus entrypoint_num_gpus entrypoint_resources env environment ephemeral_storage
exclude exclusive exec experiment_config fail_fast final_exit_codes gang gpu gpu_flag gpu_mode
gpu_per gpu_resource gpu_type grace_period gres group hang_timeout host_network hyperparameters
input_mode instance_count instance_groups instance_placement_config instance_preferences
instance_type keep_alive_period_in_seconds kind label_selector labels local_queue
logged_results lsf_queue mail-type mail_on max_pending max_retry_attempts max_run max_running
max_wait mem_limit
mem_per memory metadata metric_definitions model_channel_name node_selector nodelist omit on_hang
partition pe placement placement_timeout platform priority priority_class project qos queue quiet
requeue replicas_per_node reservation reserve reserved_memmb reserved_millicpu resources retry
retry_on retry_rules segment share_id shm_size slots smp_pe switches tags time timeout tolerations
toolkit toolkit_in_image topology
training_plan training_repository_access_mode ttl ulimits use_spot_instances user
validate_spec volume_size workload_priority image_secret coscheduler_name network
priority_class_name
"""
#: The same for parameters of components.
ARGUMENTS = """
args config_name cpu debug distribution dryrun env exit_on_file gpu h idle image j m max_retries
memMB metadata metric msg name nproc num_replicas overrides params port rdzv_backend rdzv_conf rdzv_port
script_args start_on_file tee timeout toolkit trial_idx x1 x2
"""


@pytest.mark.parametrize("name", DEFAULT_SCHEDULER_MODULES)
def test_every_option_was_judged(name: str) -> None:
    with closing(get_scheduler_factory(name)("audit")) as scheduler:
        options = dict(scheduler.run_opts())
    free = {key for key, opt in options.items() if not opt.needs_trust}
    assert free - set(DEFAULTS.split()) == set()
    secrets = {key for key, opt in options.items() if opt.secret}
    assert not secrets & free


def test_every_parameter_was_judged() -> None:
    names = {
        parameter.name
        for module, functions in BUILTINS.items()
        for function in functions
        for parameter in get_component(f"{module}.{function}").parameters
    }
    sensitive = {name.rpartition(".")[2] for name in SENSITIVE_PARAMETERS}
    assert names - sensitive - set(ARGUMENTS.split()) == set()
    assert sensitive <= names


def test_names_are_read_as_components_read_them() -> None:
    for key in ("mpi_options", "mpi-options", "mpiOptions"):
        assert what_it_names("train.script", key) == PROGRAM
    assert what_it_names("utils.sh", "*args") == what_it_names("utils.sh", "args") == PROGRAM
    assert what_it_names("torchx.components.utils.sh", "args") == PROGRAM
    assert what_it_names("shunter.components.utils:sh", "args") == PROGRAM
    assert what_it_names("utils.binary", "args") == PROGRAM
    assert what_it_names("utils.echo", "args") == ""


@pytest.mark.parametrize(
    ("value", "reads", "writes"),
    [
        ("logs", False, False),
        ("./logs/../x", False, False),
        ("{}/x", False, False),
        ("../x", True, True),
        ("/tmp/x", True, True),
        ("~/x", True, True),
        ("file:///etc/x", True, True),
        ("s3://bucket/x", False, True),
        ("a=x,b=/etc", True, True),
        (["x", "/etc"], True, True),
        ({"training": "x"}, False, False),
        ({"training": "/etc"}, True, True),
        ({"training": "file://%2Fetc"}, True, True),
        ({"training": "link?mode=link"}, True, True),
        ('{"training": "/etc"}', True, True),
        ("training:/etc", True, True),
        ("training=file:///etc", True, True),
        ("a=s3://bucket/x,b=/etc", True, True),
        ({"training": "simplecache::file:///etc"}, True, True),
        ({"training": "local:///etc"}, True, True),
        ("../x=logs", True, True),
        ("a\0b", True, True),
        ({"a": "s3://bucket/day=1?mode=File", "b": "data?mode=copy"}, False, True),
        ("outputs/${app_id}", False, False),
        ("", False, False),
        (None, False, False),
    ],
)
def test_paths_within_the_project_are_free(project: Path, value: object, reads: bool, writes: bool) -> None:
    (project / "shunter.toml").write_text("[run]\nscheduler = 'x'\n")
    source = read_project_file(str(project / "shunter.toml"))
    assert source is not None
    setting = source.settings("run")["scheduler"]
    setting.value = value.replace("{}", str(project)) if isinstance(value, str) else value
    (project / "link").symlink_to("/etc")
    assert bool(checked(FILES_OUTSIDE, setting)) is reads
    assert bool(checked(PLACE_OUTSIDE, setting)) is writes


@pytest.mark.parametrize(
    ("key", "value", "needs"),
    [
        ("component", "utils.echo", False),
        ("component", "plugin.component", False),
        ("component", "jobs.py:train", True),
        ("component", "package.module:function", True),
        ("component", "./train.py", True),
        ("component", "train.sh", True),
        ("workspace", ".", False),
        ("workspace", "lib", False),
        ("workspace", "..", True),
        ("workspace", "git+https://example.org/a", True),
        ("workspace", "@0123456789abcdef", True),
        *[(key, "x", key == "lease") for key in RUN_KEYS if key not in ("component", "workspace")],
    ],
)
def test_keys_of_run(project: Path, key: str, value: str, needs: bool) -> None:
    (project / "shunter.toml").write_text(f"[run]\n{key} = '{value}'\n")
    source = read_project_file(str(project / "shunter.toml"))
    assert source is not None
    assert bool(kind_of_run_key(key, source.settings("run")[key])) is needs


OPTS = runopts.from_dataclass(
    make_dataclass(
        "Opts",
        [
            ("address", str, option("where", default="a", needs_trust=ADDRESS)),
            ("lines", list[str], option("what", factory=list, needs_trust=PROGRAM)),
            ("size", int, option("how much", default=1)),
        ],
    )
)


@pytest.mark.parametrize("name", ["shunter.toml", "pyproject.toml", ".torchxconfig"])
def test_an_untrusted_value_gives_way_to_the_users_own(
    project: Path, home: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (home / "config").mkdir(parents=True)
    (home / "config" / "config.toml").write_text('[scheduler.fake]\naddress = "mine"\n')
    text = '[scheduler.fake]\naddress = "theirs"\nsize = 2\n'
    table = {"pyproject.toml": text.replace("[", "[tool.shunter."), ".torchxconfig": "[fake]\n" + text[17:]}
    (project / name).write_text(table.get(name, text).replace('"', "" if name[0] == "." else '"'))
    with pytest.raises(ConfigError, match=r"scheduler\.fake\.address names an address"):
        effective_options(load_config(), "fake", OPTS)
    with pytest.warns(RuntimeWarning, match="you have not trusted"):
        found = effective_options(load_config(), "fake", OPTS, refuse_withheld=False)
    assert (found["address"].value, found["size"].value) == ("mine", 2)
    # what replaces it leaves nothing to refuse
    assert effective_options(load_config(), "fake", OPTS, {"address": "given"})["address"].value == "given"
    monkeypatch.setenv("SHUNTER_FAKE_ADDRESS", "variable")
    assert effective_options(load_config(), "fake", OPTS)["address"].value == "variable"
    monkeypatch.delenv("SHUNTER_FAKE_ADDRESS")
    trust_project()
    assert effective_options(load_config(), "fake", OPTS)["address"].value == "theirs"


def test_a_default_needs_no_trust(project: Path) -> None:
    (project / "shunter.toml").write_text('[scheduler.fake]\naddress = "a"\nlines = []\n')
    assert effective_options(load_config(), "fake", OPTS)["address"].value == "a"


@pytest.mark.parametrize("value", ['address = "a"', 'address = ""', "lines = []"])
def test_a_default_that_replaces_the_users_own_needs_trust(project: Path, home: Path, value: str) -> None:
    (home / "config").mkdir(parents=True)
    (home / "config" / "config.toml").write_text('[scheduler.fake]\naddress = "mine"\nlines = ["mine"]\n')
    (project / "shunter.toml").write_text(f"[scheduler.fake]\n{value}\n")
    with pytest.raises(ConfigError, match=r"scheduler\.fake\.(address|lines) names"):
        effective_options(load_config(), "fake", OPTS)
    with pytest.warns(RuntimeWarning, match="you have not trusted"):
        found = effective_options(load_config(), "fake", OPTS, refuse_withheld=False)
    assert (found["address"].value, found["lines"].value) == ("mine", ["mine"])


def test_an_option_whose_declaration_is_silent_needs_trust(project: Path) -> None:
    opts = runopts()
    opts.add("queue", str, "which queue")
    assert dict(opts)["queue"].needs_trust == UNDECLARED
    (project / ".torchxconfig").write_text("[fake]\nqueue = theirs\n")
    with pytest.raises(ConfigError, match="does not declare"):
        effective_options(load_config(), "fake", opts)


def test_a_digest_is_of_what_is_set(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"

    def digest(text: str) -> str:
        path.write_text(text)
        source = read_project_file(str(path))
        assert source is not None
        return source.digest

    ours = "[tool.shunter.run]\nwait = true\n"
    assert digest(ours) == digest("[project]\nname = 'x'\n" + ours) == digest("# more\n" + ours)
    others = ["wait = false", "wait = 'true'", "wait = 1", "wait = true\nlog = true"]
    assert len({digest(ours.replace("wait = true", other)) for other in ["wait = true", *others]}) == 5
    ini = tmp_path / ".torchxconfig"
    ini.write_text("[a]\nb = 1\n")
    before = read_project_file(str(ini))
    ini.write_text("[a]\nb = 2\n")
    after = read_project_file(str(ini))
    assert before is not None
    assert after is not None
    assert before.digest != after.digest
