"""The causes of failures, and the rules that recognise them. Both are tables: a new cause is two lines here.

Plugins add rules by the entry point group ``shunter.failure_rules``: a function without arguments that
returns an iterable of `Rule`, each with the name of a cause here or with a `Cause` of the plugin.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from shunter._toolkit.failure_class import ERROR, LOG, SCHEDULER, START
from shunter.errors import ConfigError
from shunter.plugins import entry_points
from shunter.specs.retries import EXCEPTION, NODE, OOM, OTHER, PREEMPTED


@dataclass
class Cause:
    """Why a program failed.

    Args:
        name: a short name, for scripts.
        text: what happened, as the end of the sentence "train/0 ...".
        advice: what helps most often.
        is_consequence: whether it mostly follows from the failure of another replica.
    """

    name: str
    text: str
    advice: str = ""
    is_consequence: bool = False

    @property
    def retry_class(self) -> str:
        """The class of `shunter.specs.retries.CLASSES` by which its retries are configured and counted."""
        return _RETRY_CLASSES.get(self.name, OTHER)


@dataclass
class Rule:
    """A cause, and the text by which it is known.

    Args:
        cause: the name of a cause in `CAUSES`, or one that is not in it.
        where: `SCHEDULER`, `ERROR`, `LOG` or `START`. A pattern of errors is sought in the log,
            too, but later.
        pattern: regular expression, searched in a line without regard to case.
    """

    cause: str | Cause
    where: str
    pattern: str


_MORE_MEMORY = (
    "Let it use less memory (smaller batches, fewer data loader workers), or give it more, by --mem, -h or "
    "--memMB, where the scheduler limits memory."
)
_TABLE = [
    Cause("out_of_memory", "ran out of memory", _MORE_MEMORY),
    Cause(
        "gpu_out_of_memory",
        "ran out of GPU memory",
        "Use a smaller batch, gradient accumulation or checkpointing, or a GPU with more memory.",
    ),
    Cause(
        "shared_memory",
        "ran out of shared memory",
        "Data loader workers exchange batches through /dev/shm: give more of it, or use fewer workers.",
    ),
    Cause("disk_full", "ran out of disk space", "Free space, or write to another file system."),
    Cause(
        "open_files",
        "opened more files than its limit allows",
        "Raise the limit (ulimit -n), or use fewer data loader workers.",
    ),
    Cause(
        "processes",
        "reached a limit of processes or threads",
        "Raise the limit (ulimit -u, --pids-limit of the container), or start fewer of them.",
    ),
    Cause(
        "file_size",
        "wrote a larger file than its limit or file system allows",
        "Raise the limit (ulimit -f), or write several smaller files.",
    ),
    Cause(
        "cpu_time",
        "used more CPU time than its limit allows",
        "Raise the limit (ulimit -t): login nodes often have a low one.",
    ),
    Cause(
        "timeout",
        "was stopped at its time limit",
        "Give it more time, or continue from a checkpoint: -cfg chain=N where the scheduler supports it.",
    ),
    Cause(
        "preempted",
        "was preempted: its machine was needed for another job or taken back",
        "Run it again. With --max_retries and --checkpoints it continues automatically.",
    ),
    Cause(
        "node_lost",
        "lost the machine that it ran on",
        "Run it again. With --max_retries and --checkpoints it continues automatically.",
    ),
    Cause(
        "image",
        "has an image that cannot be pulled",
        "Check the image's name and tag, and whether the machine may pull it.",
    ),
    Cause(
        "architecture",
        "cannot run on this kind of processor",
        "Build the image or program for the architecture of the machine that runs it.",
    ),
    Cause(
        "missing_program",
        "names a program that does not exist",
        "Check the command, PATH and the image. If it is a script that exists, check its first line; against "
        "Windows line endings (CRLF): sed -i 's/\\r$//' FILE. A line for a shell needs one: sh -c 'LINE'.",
    ),
    Cause(
        "missing_interpreter",
        "names a program whose interpreter or loader does not exist",
        "Check the first line of the script. Against Windows line endings (CRLF): sed -i 's/\\r$//' FILE.",
    ),
    Cause(
        "missing_library",
        "needs a shared library that is not there",
        "Install it where the job runs, or name its directory in LD_LIBRARY_PATH.",
    ),
    Cause(
        "wrong_version",
        "uses a name that the installed version of a library does not have",
        "Compare the versions that are installed where the job runs with those that the code needs.",
    ),
    Cause(
        "installation",
        "could not install the packages that it needs",
        "Check names and versions of the packages, the Python version, and the package index.",
    ),
    Cause(
        "not_executable",
        "names a program that is not executable",
        "Make it executable (chmod +x) and check its first line, or run it by its interpreter.",
    ),
    Cause(
        "missing_module",
        "imports a Python module that is not installed",
        "Install it where the job runs: image, environment, or requirements.txt beside the script.",
    ),
    Cause(
        "missing_directory",
        "has a working directory that does not exist",
        "Create the directory where the job runs, or name another one.",
    ),
    Cause("missing_file", "looks for a file that does not exist", "Check the path as the job sees it."),
    Cause(
        "read_only",
        "writes to a file system that is read-only",
        "Write to another directory, or mount this one writable.",
    ),
    Cause(
        "corrupt_file",
        "reads a file that is damaged or cut off",
        "Go on from an earlier checkpoint, or fetch the file again.",
    ),
    Cause("malformed", "cannot parse what it reads", "Fix the line that the message names."),
    Cause("permission", "lacks the permission to use a file", "Check the owner and the mode of the file."),
    Cause("syntax", "has a syntax error", "Fix the line that the message names."),
    Cause("usage", "does not understand its arguments", "Compare the arguments with the program's --help."),
    Cause(
        "gpu_driver",
        "does not match the GPU driver of its machine",
        "Use a build for the CUDA version of the driver (nvidia-smi shows it), or another machine.",
    ),
    Cause("no_gpu", "found no GPU", "Ask for one (--gpu 1), and use a build with CUDA."),
    Cause(
        "cuda",
        "failed on the GPU",
        "CUDA_LAUNCH_BLOCKING=1 shows the line that failed.",
    ),
    Cause(
        "bad_gpu",
        "ran on a defective GPU",
        "Run it on another machine, and tell the administrators.",
    ),
    Cause(
        "nccl",
        "failed to communicate with the other processes (NCCL)",
        "Look for a replica that failed earlier. If there is none, set NCCL_DEBUG=INFO, and check "
        "NCCL_SOCKET_IFNAME.",
        is_consequence=True,
    ),
    Cause(
        "rendezvous",
        "timed out waiting for the other replicas",
        "Look for replicas that never started, and whether they reach the first host's port.",
        is_consequence=True,
    ),
    Cause(
        "peer_lost",
        "lost the connection to another process",
        "Look for a replica that failed earlier.",
        is_consequence=True,
    ),
    Cause("port_in_use", "needs a port that is in use", "Choose another port, or 0 for a free one."),
    Cause("name_lookup", "cannot resolve a host's name", "Check the name, and the DNS where the job runs."),
    Cause("connection", "cannot reach a server", "Check the address, and whether the job may reach it."),
    Cause(
        "certificate",
        "does not trust the certificate of a server",
        "Give it the certificates of your proxy (SSL_CERT_FILE, REQUESTS_CA_BUNDLE), and check its clock.",
    ),
    Cause(
        "rate_limited",
        "was refused by a server for too many requests",
        "Run it again later; with a token most services allow more. Copy shared data once for all jobs.",
    ),
    Cause(
        "not_found",
        "requests something that the server does not have",
        "Check the URL, the name and the version.",
    ),
    Cause("server_error", "got an error from a server", "Run it again when the service works."),
    Cause(
        "expired_credentials",
        "has credentials that have expired",
        "Log in again. Credentials of a role of the job are renewed automatically (AWS: an instance, task "
        "or pod role).",
    ),
    Cause(
        "credentials",
        "lacks a permission or credentials that it needs",
        "Give the job credentials: variables, a role, or a token (gated models need one).",
    ),
    Cause("segfault", "crashed: segmentation fault", "Native code failed: PYTHONFAULTHANDLER=1 shows where."),
    Cause("aborted", "aborted itself", "Native code gave up: the last lines of the log usually say why."),
    Cause("bus_error", "crashed: bus error", "Usually /dev/shm is full, or a mapped file was truncated."),
    Cause("illegal_instruction", "crashed: illegal instruction", "It was built for a newer processor."),
    Cause("arithmetic", "crashed: arithmetic error (SIGFPE)", "Usually an integer division by zero."),
    Cause(
        "worker_lost",
        "lost a worker process",
        "Most often the kernel killed it because memory ran out: give it more, or use fewer workers.",
    ),
    Cause(
        "killed",
        "was killed by SIGKILL",
        "Something outside killed it, most often the kernel or the cluster, because it used too much memory.",
    ),
    Cause(
        "hung",
        "hung",
        "Its log has the stacks of its processes. Look for one that waits for another, or for a lock.",
    ),
    Cause(
        "interrupted",
        "was interrupted by SIGINT",
        "Somebody pressed Ctrl-C, or sent the signal.",
        is_consequence=True,
    ),
    Cause("terminated", "was stopped by SIGTERM", "Something outside stopped it.", is_consequence=True),
    Cause("stack", "exceeded the maximum recursion depth", "Look for an endless recursion."),
    Cause("not_finite", "computed NaN or infinite values", "Lower the learning rate, or clip gradients."),
    Cause(
        "mpi_slots",
        "asks mpirun for more processes than it has slots for",
        "Ask for as many processes as the job has CPUs, or name the slots of the hosts.",
    ),
    Cause("dependency", "never started: a job that it waits for did not end as required"),
    Cause("submission", "was never started", "Submit it again."),
    Cause(
        "lost_code",
        "could not fetch its code",
        "`shunter rerun` submits it with a new URL. URLs last 7 days, or as long as the credentials.",
    ),
    Cause(
        "removed", "was removed while it ran", "Somebody or something removed its container. Run it again."
    ),
    Cause("supervisor", "was lost with its supervisor", "Something killed it. Run it again."),
    Cause("exception", "raised an exception", "Fix the line that the traceback names."),
    Cause("exit", "exited with an error", "The end of its log usually says why."),
    Cause("unknown", "failed for an unknown reason", "`shunter doctor` checks the scheduler."),
]
CAUSES: dict[str, Cause] = {cause.name: cause for cause in _TABLE}

#: Classes of retries by cause; `OTHER` for those that are not here.
_RETRY_CLASSES = {
    **dict.fromkeys(("out_of_memory", "shared_memory"), OOM),
    **dict.fromkeys(("node_lost", "bad_gpu", "gpu_driver"), NODE),
    "preempted": PREEMPTED,
    **dict.fromkeys(("exception", "syntax", "usage", "stack", "not_finite", "segfault"), EXCEPTION),
    **dict.fromkeys(("missing_program", "missing_module", "missing_directory", "missing_file"), EXCEPTION),
    **dict.fromkeys(("architecture", "illegal_instruction", "not_executable", "permission"), EXCEPTION),
    **dict.fromkeys(("credentials", "gpu_out_of_memory", "no_gpu", "not_found", "mpi_slots"), EXCEPTION),
    **dict.fromkeys(("missing_interpreter", "missing_library", "wrong_version", "malformed"), EXCEPTION),
    **dict.fromkeys(("read_only", "file_size", "cpu_time", "corrupt_file", "arithmetic"), EXCEPTION),
}

#: The first rule that matches decides; so what is particular comes before what is general.
_RULES = [
    Rule("architecture", START,
        r"exec format error|cannot execute binary file|^/\S+: 1: \W?ELF\W*: not found"),
    Rule("missing_library", START, r"error while loading shared libraries|cannot open shared object file"),
    Rule("missing_interpreter", START, r"bad interpreter|cannot execute: required file not found"),
    Rule("wrong_version", START, r"symbol lookup error|version `\S+' not found"),
    Rule("out_of_memory", LOG, r"oom[-_]kill event|Out of memory: Kill(ed)? process|OOM Killed"),
    Rule("shared_memory", LOG,
        r"insufficient shared memory|unable to (open|write to) (file|shared memory).*/torch_"),
    Rule("gpu_out_of_memory", ERROR,
        r"CUDA out of memory|OutOfMemoryError: (CUDA|HIP)|CUBLAS_STATUS_ALLOC_FAILED"),
    Rule("gpu_out_of_memory", ERROR, r"CUDA_ERROR_OUT_OF_MEMORY|RESOURCE_EXHAUSTED: Out of memory"),
    Rule("out_of_memory", SCHEDULER, (
        r"out of memory|OutOfMemory|OOMKilled|OUT_OF_ME|oom-?kill|TERM_MEMLIMIT|"
        r"exceed\w* .*memory"
    )),
    Rule("disk_full", SCHEDULER, (
        r"low on resource: (ephemeral-storage|inodes)|DiskPressure|ephemeral local storage usage exceeds|"
        r"exceeds the (total )?limit of .*(emptyDir|containers)"
    )),
    Rule("out_of_memory", SCHEDULER, r"low on resource: memory|MemoryPressure"),
    Rule("node_lost", SCHEDULER, (
        r"node failed|NODE_FAIL|NodeLost|a node (was lost|died)|machine went down|Host EC2|"
        r"DisruptionTarget|its host was|DUE TO NODE FAIL"
    )),
    Rule("preempted", SCHEDULER, r"preempt|\bspot\b|taken (back|away)|InterruptedNoCapacity|Evicted"),
    Rule("timeout", SCHEDULER, (
        r"time limit|TIMEOUT\b|DeadlineExceeded|MaxRuntimeExceeded|TERM_RUNLIMIT|"
        r"deadline has passed"
    )),
    Rule("lost_code", LOG, r"^shunter: cannot fetch the job's code: "),
    Rule("hung", SCHEDULER, r"because it hung\b"),
    Rule("hung", LOG, r" shunter-toolkit ERROR .* was stopped because it hung: no output for "),
    Rule("image", SCHEDULER, (
        r"image.*(cannot|could not) be pulled|ErrImagePull|ImagePullBackOff|CannotPull|"
        r"pull access denied|manifest.*(unknown|not found)|no such image|InvalidImageName|"
        r"pyxis: (failed to import|couldn't)|could not open image|FATAL: .*(oci|docker|library)://"
    )),
    Rule("dependency", SCHEDULER,
        r"never started: |DependencyNeverSatisfied|a job that it (depends on|waits for)"),
    Rule("removed", SCHEDULER, r"its container was removed"),
    Rule("submission", SCHEDULER, r"submission was interrupted"),
    Rule("disk_full", SCHEDULER, r"the disk of its log is full"),
    Rule("supervisor", SCHEDULER, r"its supervisor (was killed|received)"),
    Rule("architecture", SCHEDULER, r"exec format error"),
    Rule("missing_interpreter", SCHEDULER, r"interpreter|\bexec \S+: no such file"),
    Rule("not_executable", SCHEDULER, r"permission denied|not executable|cannot be executed"),
    Rule("missing_directory", SCHEDULER,
        r"director.* (does not exist|not found)|no such (working )?directory|chdir|workdir"),
    Rule("missing_program", SCHEDULER, r"executable file not found|no such file|not found|cannot be found"),
    Rule("missing_library", ERROR, r"cannot open shared object file|error while loading shared libraries"),
    Rule("missing_module", ERROR, r"ModuleNotFoundError|No module named"),
    Rule("wrong_version", ERROR, (
        r"ImportError: cannot import name|undefined symbol|symbol lookup error|"
        r"version `\S+' not found|numpy\.dtype size changed|compiled using NumPy 1"
    )),
    Rule("installation", ERROR, (
        r"No matching distribution found|Could not find a version that satisfies|ResolutionImpossible|"
        r"Failed (building|to build)|PackagesNotFoundError|Unable to locate package"
    )),
    Rule("gpu_driver", ERROR, (
        r"driver version is insufficient|no kernel image is available|"
        r"driver on your system is too old|CUDA_ERROR_(NO_BINARY|UNSUPPORTED_PTX)|"
        r"forward compatibility"
    )),
    Rule("no_gpu", ERROR, (
        r"No CUDA GPUs are available|Found no NVIDIA driver|not compiled with CUDA|"
        r"no CUDA-capable device|CUDA_ERROR_NO_DEVICE"
    )),
    Rule("disk_full", ERROR, (
        r"No space left on device|ENOSPC|Disk quota exceeded|EDQUOT|"
        r"inline_container.*unexpected pos|PytorchStreamWriter failed writing"  # what torch.save says of it
    )),
    Rule("open_files", ERROR, r"Too many open files|EMFILE"),
    Rule("processes", ERROR, (
        r"can't start new thread|fork: .*Resource temporarily unavailable|cannot fork|"
        r"BlockingIOError: \[Errno 11\]|pthread_create (failed|has failed)|libgomp: Thread creation failed"
    )),
    Rule("file_size", ERROR, r"File too large|EFBIG|File size limit exceeded|signal SIGXFSZ"),
    Rule("cpu_time", ERROR, r"CPU time limit exceeded|signal SIGXCPU"),
    Rule("out_of_memory", ERROR, (
        r"MemoryError|Cannot allocate memory|std::bad_alloc|Unable to allocate .* for an array|"
        r"DefaultCPUAllocator: .*memory|java\.lang\.OutOfMemoryError"
    )),
    Rule("shared_memory", ERROR, r"DataLoader worker .* killed by signal: Bus error"),
    Rule("out_of_memory", ERROR, r"DataLoader worker .* killed by signal: Killed"),
    Rule("worker_lost", ERROR, (
        r"BrokenProcessPool|DataLoader worker .* exited unexpectedly|worker .*terminated abruptly|"
        r"TerminatedWorkerError"
    )),
    Rule("nccl", ERROR, (
        r"NCCL (error|timeout|WARN .*error)|ncclSystemError|ncclInternalError|"
        r"ncclUnhandledCudaError|ncclRemoteError|collective operation timeout|"
        r"ProcessGroupNCCL.*(timeout|timed out)"
    )),
    Rule("bad_gpu", ERROR, (
        r"uncorrectable ECC|NVRM: Xid|GPU has fallen off the bus|CUDA_ERROR_(ECC|HARDWARE|SYSTEM_NOT_READY)"
    )),
    Rule("cuda", ERROR, (
        r"CUDA error|CUBLAS_STATUS|CUDNN_STATUS|device-side assert|cudaError|CUDA_ERROR"
    )),
    Rule("rendezvous", ERROR, (
        r"Rendezvous\w*(Timeout|Closed|Connection)\w*|Timed out (after|waiting for).*clients|"
        r"timed out.*rendezvous"
    )),
    Rule("peer_lost", ERROR, (
        r"Connection (closed|reset) by peer|Broken pipe|EOFError.*peer|"
        r"\bgloo\b.*(closed|timed out|timeout)"
    )),
    Rule("mpi_slots", ERROR, r"not enough slots available"),
    Rule("port_in_use", ERROR, r"Address already in use|EADDRINUSE"),
    Rule("name_lookup", ERROR, (
        r"Name or service not known|Temporary failure in name resolution|getaddrinfo failed|"
        r"nodename nor servname|NameResolutionError|Could not resolve host|unknown host"
    )),
    Rule("certificate", ERROR, (
        r"CERTIFICATE_VERIFY_FAILED|certificate verify failed|SSL certificate problem|"
        r"server certificate verification failed|x509: certificate"
    )),
    Rule("expired_credentials", ERROR, (
        r"ExpiredToken|RequestExpired|token .*(has|is) expired|UnauthorizedSSOTokenError|"
        r"TokenRetrievalError|SSO session .*expired|credentials? (has|have|are) expired"
    )),
    Rule("credentials", ERROR, (
        r"Access ?Denied|NoCredentialsError|Unable to locate credentials|"
        r"\b(401|403) (Client Error|Unauthorized|Forbidden)|HTTP Error (401|403)|returned error: (401|403)|"
        r"ERROR (401|403)\b|GatedRepoError|InvalidAccessKeyId|SignatureDoesNotMatch|"
        r"UnrecognizedClientException|InvalidClientTokenId|Permission denied \(publickey|"
        r"api[_ ]key not configured|No API key|authentication (required|failed)"
    )),
    Rule("rate_limited", ERROR, (
        r"\b429 (Client Error|Too Many Requests)|HTTP Error 429|returned error: 429|Too Many Requests|"
        r"toomanyrequests|rate limit (exceeded|reached)|RateLimitError|ThrottlingException|\(SlowDown\)"
    )),
    Rule("not_found", ERROR, (
        r"\b404 Client Error|HTTP Error 404|returned error: 404|RepositoryNotFoundError|NoSuchBucket|"
        r"NoSuchKey|EntryNotFoundError|\(404\) when calling"
    )),
    Rule("server_error", ERROR, (
        r"\b50[0234] Server Error|HTTP Error 50[0234]|returned error: 50[0234]|ServiceUnavailable\b"
    )),
    Rule("connection", ERROR, (
        r"Connection refused|Connect(ion)? ?Timeout|Network is unreachable|No route to host|"
        r"Max retries exceeded|Connection timed out|Read timed out|EndpointConnectionError"
    )),
    Rule("corrupt_file", ERROR, (
        r"PytorchStreamReader failed|UnpicklingError|pickle data was truncated|EOFError: Ran out of input|"
        r"BadZipFile|BadGzipFile|end-of-stream marker|HeaderTooLarge|SafetensorError|invalid load key|"
        r"unexpected end of data|tarfile\.ReadError|zlib\.error|MetadataIncompleteBuffer|"
        r"file signature not found"
    )),
    Rule("malformed", ERROR, (
        r"JSONDecodeError|(yaml|_yaml)\.\S*Error|TOMLDecodeError|configparser\.\w*Error|"
        r"xml\.\S*ParseError|(csv|_csv)\.Error|ParserError"
    )),
    Rule("read_only", ERROR, r"Read-only file system|EROFS"),
    Rule("missing_directory", ERROR, r"\bcd: "),
    Rule("missing_file", ERROR, r"FileNotFoundError|can't open file|No such file or directory"),
    Rule("permission", ERROR, r"PermissionError|Permission denied"),
    # setsid and tini let sh run what the kernel refuses, and sh does not know it
    Rule("architecture", ERROR, r"^/\S+(?<!sh): 1: Syntax error"),
    Rule("syntax", ERROR, r"SyntaxError|IndentationError|syntax error"),
    Rule("usage", ERROR, (
        r"error: (unrecognized arguments|the following arguments are required|argument )|"
        r"Error: (No such (option|command)|Missing (option|argument|parameter)|Invalid value for)|"
        r"unexpected extra argument|(unrecognized|unknown|invalid|illegal) (option|flag)\b"
    )),
    Rule("interrupted", ERROR, r"^KeyboardInterrupt$"),
    Rule("stack", ERROR, r"RecursionError|maximum recursion depth"),
    # of a child: what subprocess says of it
    Rule("segfault", ERROR, r"died with <Signals.SIGSEGV"),
    Rule("bus_error", ERROR, r"died with <Signals.SIGBUS"),
    Rule("aborted", ERROR, r"died with <Signals.SIGABRT"),
    Rule("illegal_instruction", ERROR, r"died with <Signals.SIGILL"),
    Rule("killed", ERROR, r"died with <Signals.SIGKILL"),
    Rule("terminated", ERROR, r"died with <Signals.SIGTERM"),
    Rule("exception", ERROR, r"^thread '.*' panicked at|^panic: |^Exception in thread "),
    Rule("not_finite", ERROR,
        r"(loss|gradient|value)s? (is|are|was|became|contains?) (nan|inf)|FloatingPointError"),
]  # fmt: skip
#: For logs only, and weak, so that they apply only if no other rule matches: programs also print such lines
#: without failing.
LOG_RULES = [
    Rule("usage", LOG, r"^usage: "),
    Rule("segfault", LOG, r"Segmentation fault|SIGSEGV"),
    Rule("bus_error", LOG, r"\bBus error\b|SIGBUS"),
    Rule("illegal_instruction", LOG, r"Illegal instruction|SIGILL"),
    Rule("arithmetic", LOG, r"Floating point exception|SIGFPE"),
    Rule("aborted", LOG, r"^\s*what\(\):|Assertion .* failed"),
    Rule("aborted", LOG, r"stack smashing detected|double free|(free|malloc|realloc)\(\): "),
    Rule("aborted", LOG, r"\bAborted\b|SIGABRT|terminate called|core dumped|Fatal Python error"),
    # shells, of a child; the kernel does not say why
    Rule("killed", LOG, r"^(\S+: line \d+:\s+\d+ )?Killed\b"),
    Rule("not_finite", LOG, r"\bloss[ =:]+nan\b"),
]

#: What exit codes say: 126 and 127 by shells, 128 + N after signal N.
BY_EXIT_CODE = {
    126: "not_executable",
    130: "interrupted",
    127: "missing_program",
    132: "illegal_instruction",
    134: "aborted",
    135: "bus_error",
    136: "arithmetic",
    137: "killed",
    139: "segfault",
    143: "terminated",
    152: "cpu_time",
    153: "file_size",
    124: "timeout",
}


def rules() -> list[Rule]:
    """Return the rules of plugins, then ours, in the order in which they are tried.

    A plugin that fails is left out with a warning: the others still explain the job.
    """
    added: list[Rule] = []
    for point in entry_points("failure_rules"):
        try:
            offered = list(point.call())
        except (ConfigError, TypeError) as error:
            _warn_of_plugin(point.name, str(error))
            continue
        added += [rule for rule in offered if isinstance(rule, Rule)]
        if not all(isinstance(rule, Rule) for rule in offered):
            _warn_of_plugin(point.name, "it offers something that is not a Rule")
    return [*added, *_RULES]


def _warn_of_plugin(name: str, problem: str) -> None:
    warnings.warn(
        f"failure rules of the plugin {name!r} are left out: {problem}", RuntimeWarning, stacklevel=3
    )


def cause_of(rule: Rule) -> Cause:
    """Return the cause that a rule names, or has."""
    return rule.cause if isinstance(rule.cause, Cause) else CAUSES[rule.cause]


def by_name(name: str) -> Cause:
    """Return the cause with a name, which may be a plugin's."""
    if name in CAUSES:
        return CAUSES[name]
    return next(cause for rule in rules() if (cause := cause_of(rule)).name == name)


def causes_table() -> dict[str, Any]:
    """Return causes and rules, those of plugins too, for the toolkit, so that jobs find the same causes."""
    known = dict(CAUSES)

    def row(rule: Rule) -> list[str]:
        cause = cause_of(rule)
        known.setdefault(cause.name, cause)
        return [cause.name, rule.where, rule.pattern]

    all_rules = [row(rule) for rule in rules()]
    log_rules = [row(rule) for rule in LOG_RULES]
    return {
        "causes": {
            cause.name: {
                "text": cause.text,
                "class": cause.retry_class,
                "is_consequence": cause.is_consequence,
            }
            for cause in known.values()
        },
        "rules": all_rules,
        "log_rules": log_rules,
        "by_exit_code": {str(code): name for code, name in BY_EXIT_CODE.items()},
    }
