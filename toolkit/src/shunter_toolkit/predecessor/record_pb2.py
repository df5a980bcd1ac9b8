"""The messages of RecordIO-protobuf as classes of the protobuf library, to parse records with."""

from __future__ import annotations

from typing import Any

from google.protobuf import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)

_FILE = "shunter_record.proto"
_PACKAGE = "aialgs.data"
_TENSORS = {"Float32Tensor": "FLOAT", "Float64Tensor": "DOUBLE", "Int32Tensor": "INT32"}
_VALUES = (("float32_tensor", 2), ("float64_tensor", 3), ("int32_tensor", 7), ("bytes", 9))


def _describe() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name=_FILE, package=_PACKAGE, syntax="proto2")
    for name, kind in _TENSORS.items():
        message = file.message_type.add(name=name)
        for field, number, of in (("values", 1, kind), ("keys", 2, "UINT64"), ("shape", 3, "UINT64")):
            added = message.field.add(name=field, number=number, label=3, type=_number(of))
            added.options.packed = True
    message = file.message_type.add(name="Bytes")
    message.field.add(name="value", number=1, label=3, type=_number("BYTES"))
    message.field.add(name="content_type", number=2, label=1, type=_number("STRING"))
    value = file.message_type.add(name="Value")
    value.oneof_decl.add(name="value")
    for (field, number), of in zip(_VALUES, (*_TENSORS, "Bytes")):
        added = value.field.add(name=field, number=number, label=1, type=11, type_name=f".{_PACKAGE}.{of}")
        added.oneof_index = 0
    record = file.message_type.add(name="Record")
    for field, number in (("features", 1), ("label", 2)):
        entry = record.nested_type.add(name=f"{field.capitalize()}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=1, type=_number("STRING"))
        entry.field.add(name="value", number=2, label=1, type=11, type_name=f".{_PACKAGE}.Value")
        of = f".{_PACKAGE}.Record.{field.capitalize()}Entry"
        record.field.add(name=field, number=number, label=3, type=11, type_name=of)
    for number, field in enumerate(("uid", "metadata", "configuration"), 3):
        record.field.add(name=field, number=number, label=1, type=_number("STRING"))
    return file


def _number(kind: str) -> int:
    return int(descriptor_pb2.FieldDescriptorProto.Type.Value(f"TYPE_{kind}"))


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_describe())
DESCRIPTOR = _pool.FindFileByName(_FILE)


def _class(name: str) -> Any:
    return message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name[name])


Float32Tensor, Float64Tensor, Int32Tensor = map(_class, _TENSORS)
Bytes, Value, Record = map(_class, ("Bytes", "Value", "Record"))
