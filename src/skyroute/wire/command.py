"""Requests and responses."""

from typing import Annotated, Final, Self

import msgspec

from skyroute.wire.codes import OUR_VERSION, ResponseCode

FLAG_RESPONSE: Final = 1
FLAG_ONEWAY: Final = 2

FORM_JSON: Final = 0
FORM_BINARY: Final = 1
"""Encodings of a header. Each frame names its own; a response has that of its request."""

Int32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class Request(msgspec.Struct, gc=False):
    """A request, or a response as it was received.

    A JSON header is decoded into this directly. `body` and `form` come from the frame, and replace members of these
    names in the header.
    """

    code: Int32 = 0
    fields: dict[str, str] = msgspec.field(default_factory=dict, name="extFields")
    flag: Int32 = 0
    language: str | None = "JAVA"
    request_id: Int32 = msgspec.field(default=0, name="opaque")
    remark: str | None = None
    version: Int32 = 0
    body: bytes = b""
    form: int = FORM_JSON

    @property
    def is_response(self) -> bool:
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & FLAG_ONEWAY)


class Response(msgspec.Struct, frozen=True, gc=False):
    """A response. It has no request id, so that one value can be the response to many requests."""

    code: int = 0
    remark: str | None = None
    fields: dict[str, str] | None = None
    body: bytes = b""
    version: int = OUR_VERSION

    @property
    def body_bytes(self) -> int:
        """Length of the whole body."""
        return len(self.body)

    @classmethod
    def error(cls, remark: str, code: int = ResponseCode.SYSTEM_ERROR) -> Self:
        return cls(code, remark)
