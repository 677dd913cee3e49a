"""Pops messages on several connections and acknowledges each batch; prints the figures as JSON.

It ends when all COUNT messages of the topic were acknowledged, or after SECONDS.

Usage: pop_load.py PORT BROKER TOPIC COUNT CONNECTIONS SECONDS
"""

import asyncio
import base64
import json
import struct
import sys
import time

POP, BATCH_ACK = 200050, 200151
COUNT = 32


def frame(code: int, opaque: int, fields: dict[str, str], body: bytes = b"") -> bytes:
    header = {"code": code, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": opaque, "version": 479}
    raw = json.dumps({**header, "serializeTypeCurrentRPC": "JSON"}).encode()
    return struct.pack(">ii", 4 + len(raw) + len(body), len(raw)) + raw + body


async def receive(reader: asyncio.StreamReader) -> dict[str, object]:
    length, header_bytes = struct.unpack(">ii", await reader.readexactly(8))
    rest = await reader.readexactly(length - 4)
    answer: dict[str, object] = json.loads(rest[: header_bytes & 0xFFFFFF])
    return answer


def ack_body(broker: str, topic: str, fields: dict[str, str]) -> tuple[int, bytes]:
    """Return the number of popped messages, and their acknowledgement."""
    starts = [entry.split(" ") for entry in fields["startOffsetInfo"].split(";")]
    offsets = [entry.split(" ")[2].split(",") for entry in fields["msgOffsetInfo"].split(";")]
    acks, count = [], 0
    for (flag, queue, start), found in zip(starts, offsets, strict=True):
        bits = 0
        for offset in found:
            bits |= 1 << (int(offset) - int(start))
        count += len(found)
        raw = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
        entry = {"c": "bench", "t": topic, "r": flag, "so": int(start), "q": int(queue)}
        times = {"rq": int(fields["reviveQid"]), "pt": int(fields["popTime"]), "it": int(fields["invisibleTime"])}
        acks.append({**entry, **times, "b": base64.b64encode(raw).decode()})
    return count, json.dumps({"acks": acks, "brokerName": broker}).encode()


class Load:
    """What all connections share."""

    def __init__(self, count: int, until: float) -> None:
        self.left = count
        self.until = until
        self.times: list[float] = []


async def consume(port: int, broker: str, topic: str, load: Load) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    fields = {"consumerGroup": "bench", "topic": topic, "queueId": "-1", "maxMsgNums": str(COUNT)}
    fields |= {
        "invisibleTime": "60000",
        "pollTime": "0",
        "bornTime": "0",
        "initMode": "0",
        "exp": "*",
        "expType": "TAG",
    }
    ask = frame(POP, 1, {**fields, "order": "false"})
    while load.left > 0 and time.perf_counter() < load.until:
        began = time.perf_counter()
        writer.write(ask)
        answer = await receive(reader)
        if answer["code"] != 0:
            if answer["code"] in (209, 210):
                await asyncio.sleep(0.001)
                continue
            raise RuntimeError(f"pop failed: {answer}")
        load.times.append(time.perf_counter() - began)
        found = answer["extFields"]
        assert isinstance(found, dict)
        count, body = ack_body(broker, topic, found)
        writer.write(frame(BATCH_ACK, 2, {}, body))
        answer = await receive(reader)
        if answer["code"] != 0:
            raise RuntimeError(f"acknowledgement failed: {answer}")
        load.left -= count
    writer.close()


async def main(port: int, broker: str, topic: str, count: int, connections: int, seconds: float) -> None:
    began = time.perf_counter()
    load = Load(count, began + seconds)
    await asyncio.gather(*(consume(port, broker, topic, load) for _ in range(connections)))
    took_s = time.perf_counter() - began
    times = sorted(load.times)
    p99_us = times[int(len(times) * 0.99)] * 1e6 if times else 0
    print(json.dumps({"messages": count - load.left, "seconds": took_s, "p99_us": p99_us}))


if __name__ == "__main__":
    port, broker, topic, count, connections, seconds = sys.argv[1:]
    asyncio.run(main(int(port), broker, topic, int(count), int(connections), float(seconds)))
