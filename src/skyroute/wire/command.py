"""One thing said by one peer to another: a request or a response."""

from collections.abc import Sequence
from typing import Annotated, Final, Self

import msgspec

from skyroute.wire.codes import OUR_VERSION, ResponseCode

FLAG_RESPONSE: Final = 1
FLAG_ONEWAY: Final = 2

FORM_JSON: Final = 0
FORM_BINARY: Final = 1
"""How a header is written. Every frame says which; a response is written as its request was."""

Int32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class Request(msgspec.Struct, gc=False):
    """What a peer asks.

    The JSON form of a header is decoded straight into this; `body` and `form` are the frame's own word, and overwrite
    whatever a peer puts into its header under those names.
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


class WrittenRequest(msgspec.Struct, frozen=True, gc=False):
    """A request whose header is written already, in JSON, but for the number and the brace at its end."""

    code: int
    header: bytes
    body: bytes


class Response(msgspec.Struct, frozen=True, gc=False):
    """What a peer is told. It knows nothing of who asked, so one can answer many."""

    code: int = 0
    remark: str | None = None
    fields: dict[str, str] | None = None
    body: bytes = b""
    version: int = OUR_VERSION
    more: Sequence[memoryview] = ()
    """Further pieces of a long body, behind `body`; they are written without being copied together."""
    header: bytes = b""
    """Its header in JSON up to the number, where its giver has written it already, for whoever asks in that form."""
    lasting: bool = False
    """The same question has the same answer until its giver says otherwise: see `wire.repeats`."""

    @property
    def body_bytes(self) -> int:
        """How long the whole body is."""
        return len(self.body) + sum(map(len, self.more)) if self.more else len(self.body)

    @classmethod
    def error(cls, remark: str, code: int = ResponseCode.SYSTEM_ERROR) -> Self:
        return cls(code, remark)
