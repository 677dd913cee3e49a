"""What the pages of topics say, and what is said of their health."""

from typing import Final

WORDS: Final = {
    # The list
    "Search topics": "搜索主题",
    "Topic": "主题",
    "Type": "类型",
    "Problems": "问题",
    "Permission": "权限",
    "All": "全部",
    "All but the system's own": "全部（不含系统主题）",
    "With or without problems": "不限是否有问题",
    "Normal": "普通",
    "Delay": "延迟",
    "FIFO": "顺序",
    "Transaction": "事务",
    "Mixed": "混合",
    "Unspecified": "未指定",
    "Retry": "重试",
    "Dead letter": "死信",
    "System": "系统",
    "Read and write": "可读可写",
    "Read only": "只读",
    "Write only": "只写",
    "Neither": "禁止读写",
    "{write} to write, {read} to read": "写 {write}，读 {read}",
    "{address} does not tell its topics: {failure}": "{address} 没有返回主题列表：{failure}",
    "The brokers are being asked for their topics.": "正在向 Broker 查询主题。",
    "No topic is like that.": "没有符合条件的主题。",
    "There is no topic {topic}": "主题 {topic} 不存在。",
    # Making, changing and deleting one
    "Create a topic": "新建主题",
    "Create": "创建",
    "Name": "名称",
    "Letters, digits, and the characters _ - % |": "字母、数字以及 _ - % |",
    "Where": "位置",
    "Cluster {name}": "集群 {name}",
    "Broker {name}": "Broker {name}",
    "Write queues, on each broker": "每个 Broker 的写队列数",
    "Read queues, on each broker": "每个 Broker 的读队列数",
    "Ordered: its queues stay the same while a broker is away": "顺序主题：Broker 离线时队列保持不变",
    "The topic {topic} was created": "主题 {topic} 已创建",
    "Change": "修改",
    "Save": "保存",
    "Give the topic {topic} {write_queues} queues to write and {read_queues} to read, on {place}?": (
        "将主题 {topic} 在 {place} 上改为 {write_queues} 个写队列、{read_queues} 个读队列吗？"
    ),
    "With fewer queues to read than before, nobody gets what is still in the others. Without a permission, clients "
    "fail at once.": "读队列减少后，其余队列中尚存的消息将无人消费；取消权限后，客户端会立即报错。",
    "The topic {topic} was changed": "主题 {topic} 已修改",
    "Delete": "删除",
    "From the cluster": "所在集群",
    "Delete the topic and its messages": "删除主题及其消息",
    "Delete the topic {topic} from the cluster {cluster}, with {messages} messages in {queues} queues?": (
        "从集群 {cluster} 删除主题 {topic}（{queues} 个队列，{messages} 条消息）吗？"
    ),
    "Its messages are gone for good on every broker of the cluster, and so is where each group has got to. Whoever "
    "still sends to it or reads it fails.": (
        "该集群所有 Broker 上的消息以及各消费组的消费位点都将永久丢失，仍在收发该主题的客户端会报错。"
    ),
    "The topic {topic} was deleted": "主题 {topic} 已删除",
    "This topic is the brokers' own: they would not let it be changed.": "这是 Broker 的系统主题，不允许修改。",
    "Ordered topic": "顺序主题",
    "yes": "是",
    "no": "否",
    # One topic
    "Sides of the topic": "主题的各个方面",
    "Its messages": "查看消息",
    "Its route history": "路由历史",
    "Queue status": "队列状态",
    "Route and health": "路由与诊断",
    "Rates": "流量",
    "Consumers": "消费者",
    "Send": "发送消息",
    "Settings": "配置",
    "There was no answer in time.": "等待响应超时。",
    "This broker does not tell.": "该 Broker 不支持此查询。",
    "{address} does not answer: {failure}": "{address} 没有响应：{failure}",
    "Broker": "Broker",
    "Queue": "队列",
    "First offset": "最小位点",
    "Next offset": "最大位点",
    "Last stored": "最后写入时间",
    "Stored a second": "每秒写入",
    "Health": "诊断",
    "Nothing is wrong with it, as far as can be seen.": "未发现问题。",
    "Route": "路由",
    "Master": "主节点",
    "Slaves": "从节点",
    "Its order is laid down at the name servers: {config}": "NameServer 上的顺序配置：{config}",
    "No name server knows a route to it.": "没有 NameServer 知道它的路由。",
    "Name servers": "NameServer",
    "Name server": "NameServer",
    "What it says of the topic": "对该主题的记录",
    "{brokers} brokers, {queues} queues": "{brokers} 个 Broker，{queues} 个队列",
    "It does not know it.": "不知道该主题。",
    "In, last 24 hours": "近 24 小时流入",
    "Out, last 24 hours": "近 24 小时流出",
    "Rates are those of the last minute.": "速率为最近一分钟的平均值。",
    "Group": "消费组",
    "In flight": "处理中",
    "Has come up to": "已消费到",
    "No group has read it.": "没有消费组消费过它。",
    "Reset offsets": "重置消费位点",
    "Have a group go on elsewhere in all queues of this topic. Each of these asks before anything is done.": (
        "让一个消费组在该主题的所有队列上从别处继续消费。执行前都会再次确认。"
    ),
    "Time: 2025-12-31 23:59, 23:59, or 10m for ten minutes ago": "时间：2025-12-31 23:59、23:59，或 10m 表示十分钟前",
    # A message to try it with
    "Message id": "消息 ID",
    "Offset": "位点",
    "Status": "状态",
    "Body": "消息体",
    "Tag": "Tag",
    "Keys, with blanks between": "Key（多个用空格分隔）",
    "Sharding key, for order": "分区键（顺序消息）",
    "Delay level; 0: at once": "延迟级别（0 为立即投递）",
    "Properties, a line each: name=value": "属性（每行一个：名称=值）",
    "Send a message": "发送",
    "A message was sent to {topic}": "已向 {topic} 发送一条消息",
    # What can be wrong, and what to do about it
    "No master": "缺少主节点",
    "No master of {brokers} answers: nobody can send there.": "{brokers} 的主节点没有响应，无法向其发送消息。",
    "Start the master again, or make the topic on another broker too, so that producers can go there.": (
        "请重启主节点，或在其他 Broker 上也创建该主题，使生产者可以切换过去。"
    ),
    "Not writable": "不可写",
    "Nobody can send to it: no broker allows it.": "所有 Broker 都不允许写入，无法发送消息。",
    "{brokers}: nobody can send to it there.": "{brokers}：该处无法写入。",
    "{brokers}: the broker takes messages, but name servers tell clients that it does not.": (
        "{brokers}：Broker 允许写入，但 NameServer 告诉客户端不可写。"
    ),
    "If it is not closed on purpose, give the topic the permission to write, and at least one queue to write.": (
        "若非有意关闭，请为主题开放写权限，并至少设置一个写队列。"
    ),
    "Not readable": "不可读",
    "Nobody can read it: no broker allows it.": "所有 Broker 都不允许读取，无法消费。",
    "{brokers}: nobody can read it there.": "{brokers}：该处无法读取。",
    "If it is not closed on purpose, give the topic the permission to read, and at least one queue to read.": (
        "若非有意关闭，请为主题开放读权限，并至少设置一个读队列。"
    ),
    "Read and write queues differ": "读写队列数不一致",
    "{brokers}: more queues are written than read, so that what is in the others reaches nobody.": (
        "{brokers}：写队列多于读队列，多出的队列中的消息无人能消费。"
    ),
    "{brokers}: more queues are read than written; nothing new comes into the others.": (
        "{brokers}：读队列多于写队列，多出的队列不再有新消息。"
    ),
    "Make both numbers the same; to have fewer queues, lower the number to write first, and the other when they are "
    "empty.": "请将两者设为一致；缩减队列时先减写队列，待消费完后再减读队列。",
    "Uneven brokers": "Broker 间队列不均",
    "One broker has {least} queues of it, another {most}: messages do not spread evenly.": (
        "有的 Broker 只有 {least} 个队列，有的有 {most} 个，消息分布不均。"
    ),
    "Give the topic the same number of queues on every broker, unless one is meant to take more.": (
        "除非有意让某个 Broker 承担更多，否则请在每个 Broker 上设置相同的队列数。"
    ),
    "Settings differ": "配置不一致",
    "Brokers differ in what clients may do with it.": "各 Broker 的权限不一致。",
    "Brokers differ in whether it is ordered.": "各 Broker 的顺序设置不一致。",
    "Brokers differ in what messages it is for.": "各 Broker 的消息类型不一致。",
    "Brokers differ in its other attributes.": "各 Broker 的其他属性不一致。",
    "Brokers differ in its flags.": "各 Broker 的标志位不一致。",
    "Save the settings once for the whole cluster, so that every broker has the same.": (
        "请对整个集群保存一次配置，使各 Broker 一致。"
    ),
    "One broker only": "单 Broker 风险",
    "Only {broker} has it: without that, nobody can send to it or read it.": (
        "只有 {broker} 上有该主题：一旦它离线，将无法收发消息。"
    ),
    "The cluster has no other broker than {broker}: without that, nobody can send to it or read it.": (
        "集群只有 {broker} 一个 Broker：一旦它离线，将无法收发消息。"
    ),
    "Make the topic on a second broker, so that it outlives the loss of one.": (
        "请在另一个 Broker 上也创建该主题，以承受单个 Broker 故障。"
    ),
    "Name servers disagree": "NameServer 不一致",
    "{count} of {total} name servers do not know it: {servers}.": (
        "{total} 个 NameServer 中有 {count} 个不知道该主题：{servers}。"
    ),
    "They differ in “{what}” of {broker}: {said}.": "它们对 {broker} 的“{what}”记录不同：{said}。",
    "Clients see another route, depending on whom they ask. Wait half a minute for brokers to tell it again; if it "
    "stays, look at the line between broker and name server.": (
        "客户端查询不同的 NameServer 会得到不同的路由。请等半分钟让 Broker 重新注册；若仍不一致，请检查 Broker 与该 NameServer 之间的网络。"
    ),
    "Uneven queues": "队列数据倾斜",
    "The queue {full} holds {most} messages and {empty} holds {least}; evenly spread, each would hold {mean}.": (
        "队列 {full} 有 {most} 条消息，{empty} 有 {least} 条；均匀分布时每个队列应有 {mean} 条。"
    ),
    "Look at how producers choose a queue: by a sharding key that most messages share, or always the same one.": (
        "请检查生产者如何选择队列：是否大多数消息使用同一分区键，或总是写入同一队列。"
    ),
}
