import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.stream.Collectors;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.consumer.DefaultMQPushConsumerImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.client.trace.TraceDataEncoder;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Apache's own clients, as many as a test needs, in one JVM.
 *
 * Each line of standard input is a JSON object: "do" names one of the methods below, "id" comes back in the answer, the
 * rest are its arguments. Each line of standard output is an answer ({"id", "result"} or {"id", "error", "code"}) or an
 * event ({"event", "of"}): a message that a consumer received, a transaction that a producer was asked about. Commands
 * run at the same time; who wants an order awaits the answers.
 *
 * A handler's behaviour is written on the message itself, so that it is the same whichever member of a group gets it:
 * user properties "outcome" (of a transaction: commit, rollback, unknown) and "checks" (what each check-back answers).
 */
public class ClientShell {
    private static final PrintStream OUT = System.out;
    private static final Map<String, Object> CLIENTS = new ConcurrentHashMap<>();
    private static final Map<String, Thread> POLLERS = new ConcurrentHashMap<>();

    public static void main(String[] none) throws Exception {
        System.setOut(System.err);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        ExecutorService pool = Executors.newCachedThreadPool();
        say(JSONObject.of("event", "ready"));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            JSONObject command = JSON.parseObject(line);
            pool.execute(() -> answer(command));
        }
        System.exit(0);
    }

    private static void answer(JSONObject command) {
        JSONObject answer = JSONObject.of("id", command.get("id"));
        try {
            answer.put("result", run(command));
        } catch (Throwable error) {
            answer.put("error", error.toString());
            if (error instanceof MQBrokerException) {
                answer.put("code", ((MQBrokerException) error).getResponseCode());
            } else if (error instanceof MQClientException) {
                answer.put("code", ((MQClientException) error).getResponseCode());
            }
            error.printStackTrace();
        }
        say(answer);
    }

    private static synchronized void say(JSONObject line) {
        OUT.println(line.toJSONString());
        OUT.flush();
    }

    private static Object run(JSONObject command) throws Exception {
        switch (command.getString("do")) {
            case "producer": return startProducer(command);
            case "send": return send(command);
            case "sendBatch": return sendBatch(command);
            case "request": return describe(producer(command).request(message(command), command.getLongValue("timeoutMs")));
            case "consumer": return startConsumer(command);
            case "pullConsumer": return startPullConsumer(command);
            case "seek": return seek(command);
            case "owned": return owned(CLIENTS.get(command.getString("of")));
            case "stop": {
                Hurry.through(() -> stop(command.getString("of")));
                return null;
            }
            case "createTopic": return createTopic(command);
            case "createUser": return createUser(command);
            case "decodeTrace": return TraceDataEncoder.decoderFromTraceDataString(command.getString("text"));
            default: throw new IllegalArgumentException("no such command: " + command);
        }
    }

    private static <T extends ClientConfig> T connected(T client, JSONObject options) {
        client.setNamesrvAddr(options.getString("nameServers"));
        client.setInstanceName(options.getString("of"));
        client.setUseTLS(options.getBooleanValue("tls"));
        client.setVipChannelEnabled(options.getBooleanValue("vip"));
        client.setPollNameServerInterval(1000);
        client.setHeartbeatBrokerInterval(2000);
        client.setPersistConsumerOffsetInterval(1000);
        if (options.containsKey("namespace")) {
            client.setNamespace(options.getString("namespace"));
        }
        client.setEnableTrace(options.getBooleanValue("trace"));
        client.setTraceMsgBatchNum(1);
        return client;
    }

    private static RPCHook signing(JSONObject options) {
        String key = options.getString("accessKey");
        return key == null ? null : new AclClientRPCHook(new SessionCredentials(key, options.getString("secretKey")));
    }

    // ---------------------------------------------------------------------------------------------------- producers

    private static Object startProducer(JSONObject options) throws Exception {
        String name = options.getString("of");
        String group = options.getString("group");
        DefaultMQProducer producer;
        if (options.getBooleanValue("transactional")) {
            TransactionMQProducer transactional = new TransactionMQProducer(group, signing(options));
            transactional.setTransactionListener(new Scripted(name));
            producer = transactional;
        } else {
            producer = new DefaultMQProducer(group, signing(options));
        }
        connected(producer, options);
        producer.setSendMsgTimeout(options.getIntValue("timeoutMs", 5000));
        producer.setCompressMsgBodyOverHowmuch(options.getIntValue("compressOver", 1 << 30));
        if (options.containsKey("compression")) {
            producer.setCompressType(CompressionType.of(options.getString("compression")));
        }
        producer.start();
        CLIENTS.put(name, producer);
        return producer.buildMQClientId();
    }

    private static DefaultMQProducer producer(JSONObject command) {
        return (DefaultMQProducer) CLIENTS.get(command.getString("of"));
    }

    private static Message message(JSONObject from) {
        Message message = new Message(from.getString("topic"), Base64.getDecoder().decode(from.getString("body")));
        if (from.containsKey("tag")) {
            message.setTags(from.getString("tag"));
        }
        if (from.containsKey("keys")) {
            message.setKeys(from.getJSONArray("keys").toJavaList(String.class));
        }
        if (from.containsKey("delayLevel")) {
            message.setDelayTimeLevel(from.getIntValue("delayLevel"));
        }
        if (from.containsKey("delayMs")) {
            message.setDelayTimeMs(from.getLongValue("delayMs"));
        }
        if (from.containsKey("deliverAtMs")) {
            message.setDeliverTimeMs(from.getLongValue("deliverAtMs"));
        }
        if (from.containsKey("properties")) {
            from.getJSONObject("properties").forEach((key, value) -> message.putUserProperty(key, (String) value));
        }
        return message;
    }

    private static Object send(JSONObject command) throws Exception {
        DefaultMQProducer producer = producer(command);
        Message message = message(command);
        if (command.getBooleanValue("oneway")) {
            producer.sendOneway(message);
            return null;
        }
        if (producer instanceof TransactionMQProducer) {
            return describe(producer.sendMessageInTransaction(message, null));
        }
        if (command.getBooleanValue("async")) {
            return sendAsync(producer, message);
        }
        if (command.containsKey("orderKey")) {
            return describe(producer.send(message, new SelectMessageQueueByHash(), command.getString("orderKey")));
        }
        return describe(producer.send(message));
    }

    private static Object sendAsync(DefaultMQProducer producer, Message message) throws Exception {
        CompletableFuture<SendResult> done = new CompletableFuture<>();
        producer.send(message, new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                done.complete(result);
            }

            @Override
            public void onException(Throwable error) {
                done.completeExceptionally(error);
            }
        });
        return describe(done.get());
    }

    private static Object sendBatch(JSONObject command) throws Exception {
        List<Message> messages = new ArrayList<>();
        JSONArray described = command.getJSONArray("messages");
        for (int at = 0; at < described.size(); at++) {
            messages.add(message(described.getJSONObject(at)));
        }
        return describe(producer(command).send(messages));
    }

    private static JSONObject describe(SendResult result) {
        return JSONObject.of("status", result.getSendStatus().name(), "msgId", result.getMsgId(),
            "queueId", result.getMessageQueue().getQueueId(), "broker", result.getMessageQueue().getBrokerName(),
            "queueOffset", result.getQueueOffset());
    }

    private static class Scripted implements TransactionListener {
        private final String name;

        Scripted(String name) {
            this.name = name;
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object none) {
            return state(message.getUserProperty("outcome"));
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            String[] checks = message.getUserProperty("checks").split(",");
            int times = Integer.parseInt(message.getProperty("TRANSACTION_CHECK_TIMES"));
            say(describe(message).fluentPut("event", "check").fluentPut("of", name));
            return state(checks[Math.min(times, checks.length) - 1]);
        }

        private static LocalTransactionState state(String word) {
            switch (word) {
                case "commit": return LocalTransactionState.COMMIT_MESSAGE;
                case "rollback": return LocalTransactionState.ROLLBACK_MESSAGE;
                default: return LocalTransactionState.UNKNOW;
            }
        }
    }

    // ---------------------------------------------------------------------------------------------------- consumers

    private static Object startConsumer(JSONObject options) throws Exception {
        String name = options.getString("of");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.getString("group"), signing(options));
        connected(consumer, options);
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(options.getString("from")));
        consumer.setMessageModel(MessageModel.valueOf(options.getString("model")));
        consumer.setClientRebalance(!options.getBooleanValue("serverRebalance"));
        consumer.setMaxReconsumeTimes(options.getIntValue("reconsumeTimesMax", -1));
        consumer.setSuspendCurrentQueueTimeMillis(100);
        for (Map.Entry<String, Object> subscription : options.getJSONObject("subscriptions").entrySet()) {
            String expression = (String) subscription.getValue();
            boolean isSql = options.getBooleanValue("sql");
            consumer.subscribe(subscription.getKey(),
                isSql ? MessageSelector.bySql(expression) : MessageSelector.byTag(expression));
        }
        int failures = options.getIntValue("failures");
        if (options.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                messages.forEach(message -> received(name, message));
                return messages.get(0).getReconsumeTimes() < failures
                    ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            DefaultMQProducer replies = options.getBooleanValue("replies") ? replies(options) : null;
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(message -> received(name, message));
                if (replies != null) {
                    messages.forEach(message -> reply(replies, message));
                }
                return messages.get(0).getReconsumeTimes() < failures
                    ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        CLIENTS.put(name, consumer);
        return consumer.buildMQClientId();
    }

    private static DefaultMQProducer replies(JSONObject options) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(options.getString("group") + "-replies", signing(options));
        connected(producer, options);
        producer.setInstanceName(options.getString("of") + "-replies");
        producer.start();
        CLIENTS.put(options.getString("of") + "-replies", producer);
        return producer;
    }

    private static void reply(DefaultMQProducer producer, MessageExt question) {
        try {
            String text = "reply to " + new String(question.getBody(), StandardCharsets.UTF_8);
            producer.send(MessageUtil.createReplyMessage(question, text.getBytes(StandardCharsets.UTF_8)));
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    private static Object startPullConsumer(JSONObject options) throws Exception {
        String name = options.getString("of");
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(options.getString("group"), signing(options));
        connected(consumer, options);
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(options.getString("from")));
        JSONObject subscriptions = options.getJSONObject("subscriptions");
        boolean isAssigned = options.getBooleanValue("assigned");
        for (Map.Entry<String, Object> subscription : subscriptions.entrySet()) {
            if (isAssigned) {
                consumer.setSubExpressionForAssign(subscription.getKey(), (String) subscription.getValue());
            } else {
                consumer.subscribe(subscription.getKey(), (String) subscription.getValue());
            }
        }
        consumer.start();
        if (isAssigned) {
            List<MessageQueue> queues = new ArrayList<>();
            for (String topic : subscriptions.keySet()) {
                queues.addAll(consumer.fetchMessageQueues(topic));
            }
            consumer.assign(queues);
        }
        CLIENTS.put(name, consumer);
        Thread poller = new Thread(() -> {
            while (consumer.isRunning()) {
                consumer.poll(500).forEach(message -> received(name, message));
                consumer.commitSync();
            }
        });
        POLLERS.put(name, poller);
        poller.start();
        return consumer.buildMQClientId();
    }

    private static Object seek(JSONObject command) throws Exception {
        DefaultLitePullConsumer consumer = (DefaultLitePullConsumer) CLIENTS.get(command.getString("of"));
        for (MessageQueue queue : consumer.assignment()) {
            if (queue.getTopic().equals(command.getString("topic"))) {
                consumer.seek(queue, command.getLongValue("offset"));
            }
        }
        return null;
    }

    private static void received(String name, MessageExt message) {
        say(describe(message).fluentPut("event", "message").fluentPut("of", name));
    }

    private static JSONObject describe(Message message) {
        JSONObject described = JSONObject.of("topic", message.getTopic(), "tag", message.getTags(),
            "keys", message.getKeys(), "body", Base64.getEncoder().encodeToString(message.getBody()));
        described.put("properties", message.getProperties());
        if (message instanceof MessageExt) {
            MessageExt stored = (MessageExt) message;
            described.fluentPut("msgId", stored.getMsgId()).fluentPut("queueId", stored.getQueueId())
                .fluentPut("queueOffset", stored.getQueueOffset()).fluentPut("broker", stored.getBrokerName())
                .fluentPut("sysFlag", stored.getSysFlag()).fluentPut("reconsumeTimes", stored.getReconsumeTimes())
                .fluentPut("bornMs", stored.getBornTimestamp()).fluentPut("storedMs", stored.getStoreTimestamp());
        }
        return described;
    }

    private static Object owned(Object client) throws Exception {
        Collection<MessageQueue> queues;
        if (client instanceof DefaultMQPushConsumer) {
            DefaultMQPushConsumerImpl inner = ((DefaultMQPushConsumer) client).getDefaultMQPushConsumerImpl();
            queues = inner.getRebalanceImpl().getProcessQueueTable().keySet();
        } else {
            queues = ((DefaultLitePullConsumer) client).assignment();
        }
        return queues.stream().filter(queue -> !queue.getTopic().startsWith("%RETRY%"))
            .map(queue -> List.of(queue.getTopic(), queue.getBrokerName(), queue.getQueueId()))
            .collect(Collectors.toList());
    }

    private static void stop(String name) throws Exception {
        Object client = CLIENTS.remove(name);
        if (client instanceof DefaultMQProducer) {
            ((DefaultMQProducer) client).shutdown();
        } else if (client instanceof DefaultMQPushConsumer) {
            ((DefaultMQPushConsumer) client).shutdown();
            if (CLIENTS.containsKey(name + "-replies")) {
                stop(name + "-replies");
            }
        } else if (client instanceof DefaultLitePullConsumer) {
            ((DefaultLitePullConsumer) client).shutdown();
            POLLERS.remove(name).join();
        } else if (client instanceof DefaultMQAdminExt) {
            ((DefaultMQAdminExt) client).shutdown();
        }
    }

    // -------------------------------------------------------------------------------------------------------- admin

    private static DefaultMQAdminExt admin(JSONObject options) throws Exception {
        String name = "admin@" + options.getString("nameServers") + options.getString("accessKey") + options.get("tls");
        synchronized (CLIENTS) {
            DefaultMQAdminExt admin = (DefaultMQAdminExt) CLIENTS.get(name);
            if (admin == null) {
                admin = connected(new DefaultMQAdminExt(signing(options), 5000), options);
                admin.setInstanceName("admin-" + CLIENTS.size());
                admin.start();
                CLIENTS.put(name, admin);
            }
            return admin;
        }
    }

    private static Object createTopic(JSONObject options) throws Exception {
        int queues = options.getIntValue("queues");
        TopicConfig config = new TopicConfig(options.getString("topic"), queues, queues, 6);
        for (String broker : options.getJSONArray("brokers").toJavaList(String.class)) {
            admin(options).createAndUpdateTopicConfig(broker, config);
        }
        return null;
    }

    /** A user who may send to, and receive from, topics and groups with one prefix. */
    private static Object createUser(JSONObject options) throws Exception {
        String user = options.getString("user");
        String prefix = options.getString("prefix");
        for (String broker : options.getJSONArray("brokers").toJavaList(String.class)) {
            admin(options).createUser(broker, user, options.getString("password"), "Normal");
            admin(options).createAcl(broker, "User:" + user, List.of("Topic:" + prefix + "*", "Group:" + prefix + "*"),
                List.of("Pub", "Sub"), List.of(), "Allow");
        }
        return null;
    }
}
