"""The first page."""

from typing import Final

WORDS: Final = {
    "Brokers that do not answer: {n}": "{n} 个 Broker 没有响应",
    "Brokers whose disk is nearly full: {n}": "{n} 个 Broker 磁盘将满",
    "Brokers whose commit log is damaged: {n}": "{n} 个 Broker 的 CommitLog 有损坏",
    "all of them": "查看全部",
    "The name servers do not all say the same": "各 NameServer 的数据不一致",
    "see where they differ": "查看差异",
    "Brokers": "Broker",
    "answering: {n}": "{n} 个有响应",
    "{n} groups": "{n} 个消费组",
    "In, messages a second": "生产速率（条/秒）",
    "Out, messages a second": "消费速率（条/秒）",
    "In, messages a second, over the last half hour": "最近半小时的生产速率（条/秒）",
    "Out, messages a second, over the last half hour": "最近半小时的消费速率（条/秒）",
    "{n} today": "今日 {n} 条",
    "fullest disk {share}": "磁盘最高使用率 {share}",
    "These are the busiest {n}; see all {total}": "以上为最繁忙的 {n} 个，查看全部 {total} 个",
    "The name servers know no broker yet.": "NameServer 尚无已注册的 Broker。",
    "and {n} more clusters": "另有 {n} 个集群",
    "Name servers": "NameServer",
}
