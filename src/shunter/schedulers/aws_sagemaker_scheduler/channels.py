"""Input channels: a URI with settings becomes an entry of ``InputDataConfig``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

from shunter.errors import ConfigError, did_you_mean

S3_SCHEMES = ("s3://", "https://")
FILE_SYSTEMS = {"fsx": "FSxLustre", "efs": "EFS"}
MODEL_CONTENT_TYPE = "application/x-sagemaker-model"

#: Setting -> member of the channel.
_OF_CHANNEL = {
    "mode": "InputMode",
    "content_type": "ContentType",
    "compression": "CompressionType",
    "record_wrapper": "RecordWrapperType",
}
#: Setting -> member of the channel's source in S3; the values of the last two are lists.
_OF_S3 = {
    "distribution": "S3DataDistributionType",
    "data_type": "S3DataType",
    "attributes": "AttributeNames",
    "groups": "InstanceGroupNames",
}
_LISTS = {"attributes", "groups"}
_SETTINGS = {*_OF_CHANNEL, *_OF_S3, "shuffle_seed"}
_FILE_SYSTEM_SETTINGS = {"access", "content_type", "mode"}
#: Which setting a member of the request comes from, for messages.
SETTING_OF_MEMBER = {member: name for table in (_OF_CHANNEL, _OF_S3) for name, member in table.items()}


@dataclass
class LocalInput:
    """A path of this machine that has to be in S3 before the job is created.

    Attributes:
        path: a file or a directory, absolute.
        uri: the ``file://`` URI that stands for it in the request until it is uploaded.
    """

    path: str
    uri: str


@dataclass
class InputChannels:
    """The channels of a job, as the request has them, and what has to be uploaded for them."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    uploads: list[LocalInput] = field(default_factory=list)

    def add(self, name: str, given: Any, **members: Any) -> None:
        """Add a channel."""
        if any(entry["ChannelName"] == name for entry in self.entries):
            raise ConfigError(f"the channel {name!r} is given twice")
        uri, settings = _split(name, given)
        entry: dict[str, Any] = {"ChannelName": name, "DataSource": self._source(name, uri, settings)}
        entry |= {_OF_CHANNEL[key]: value for key, value in settings.items() if key in _OF_CHANNEL}
        if "shuffle_seed" in settings:
            entry["ShuffleConfig"] = {"Seed": _number(name, settings["shuffle_seed"])}
        self.entries.append(entry | members)

    def _source(self, name: str, uri: str, settings: Mapping[str, str]) -> dict[str, Any]:
        """Return the ``DataSource`` of a URI: every kind of channel is made here."""
        scheme = uri.partition("://")[0] if "://" in uri else "file"
        if scheme in FILE_SYSTEMS:
            return {"FileSystemDataSource": _file_system(name, uri, scheme, settings)}
        if scheme == "file":
            upload = local_path(uri)
            self.uploads.append(upload)
            uri = upload.uri
        elif scheme not in ("s3", "https"):
            raise ConfigError(
                f"channel {name!r}: SageMaker cannot read {scheme}:// URIs",
                hint="Give s3://bucket/prefix, fsx://fs-ID/path, efs://fs-ID/path or a path of this machine.",
            )
        source: dict[str, Any] = {
            "S3DataType": "S3Prefix",
            "S3Uri": uri,
            "S3DataDistributionType": "FullyReplicated",
        }
        for key, value in settings.items():
            if key in _OF_S3:
                items = [item for item in value.split(",") if item]
                source[_OF_S3[key]] = items if key in _LISTS else value
        return {"S3DataSource": source}

    def assign(self, groups: list[str]) -> None:
        """Give all instance groups to the channels that name none, if some channels name their groups.

        The service refuses requests in which some channels have groups and others have not; the launcher's
        own channels, which bring the code, have none at first.
        """
        sources = [entry["DataSource"].get("S3DataSource", {}) for entry in self.entries]
        if groups and any("InstanceGroupNames" in source for source in sources):
            for source in filter(None, sources):
                source.setdefault("InstanceGroupNames", list(groups))


def local_path(uri: str) -> LocalInput:
    """Return a path of this machine, given as such or as a ``file://`` URI, as something to upload."""
    given = unquote(uri.removeprefix("file://")) if uri.startswith("file://") else uri
    path = os.path.abspath(os.path.expanduser(given))
    return LocalInput(path, "file://" + path.replace("%", "%25"))


def check_exists(uploads: Iterable[LocalInput]) -> None:
    """Refuse paths of this machine that do not exist, before anything is packed, uploaded or started."""
    for upload in uploads:
        if not os.path.exists(upload.path):
            raise ConfigError(
                f"there is no file or directory {upload.path}, which should contain the job's data",
                hint="Correct the path of the channel or model, or give an s3:// URI.",
            )


def is_s3(uri: str) -> bool:
    """Tell whether a URI is in S3."""
    return uri.startswith(S3_SCHEMES)


def _split(name: str, given: Any) -> tuple[str, dict[str, str]]:
    if isinstance(given, Mapping):
        settings = {str(key): str(value) for key, value in given.items() if key != "uri"}
        if settings.get("mode") in ("link", "copy"):  # for the toolkit alone; SageMaker always copies
            del settings["mode"]
        uri = str(given.get("uri", ""))
    else:
        uri, settings = _split_text(name, str(given))
    if not uri:
        raise ConfigError(f"channel {name!r} has no URI")
    known = _FILE_SYSTEM_SETTINGS if uri.partition("://")[0] in FILE_SYSTEMS else _SETTINGS
    for key in settings:
        if key not in known:
            raise ConfigError(f"channel {name!r} has no setting {key!r}", hint=did_you_mean(key, known))
    return uri, settings


def _split_text(name: str, text: str) -> tuple[str, dict[str, str]]:
    """Cut the settings off; a ``?`` that no setting follows belongs to the key."""
    uri, mark, query = text.rpartition("?")
    if not mark or "=" not in query.partition("/")[0]:
        return text, {}
    try:
        return uri, dict(parse_qsl(query, keep_blank_values=True, strict_parsing=True))
    except ValueError:
        raise ConfigError(
            f"channel {name!r}: cannot read the settings {query!r}",
            hint="Settings are written as s3://bucket/prefix?mode=FastFile&distribution=ShardedByS3Key.",
        ) from None


def _file_system(name: str, uri: str, scheme: str, settings: Mapping[str, str]) -> dict[str, Any]:
    identity, _, path = uri.partition("://")[2].partition("/")
    if not identity:
        raise ConfigError(
            f"channel {name!r}: {uri} does not name a file system", hint=f"{scheme}://fs-0123456789/path"
        )
    return {
        "FileSystemId": identity,
        "FileSystemType": FILE_SYSTEMS[scheme],
        "DirectoryPath": f"/{path}",
        "FileSystemAccessMode": settings.get("access", "ro"),
    }


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"channel {name!r}: shuffle_seed must be a whole number, not {text!r}") from None
